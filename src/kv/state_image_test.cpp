#include "kv/state_image.h"

#include <gtest/gtest.h>

namespace uma::kv {
namespace {

StateImage sealed_image() {
  StateImage image;
  image.identity = "model|layout";
  image.tokens = {1, 2, 3, 4, 5};
  image.pieces.push_back({0, 3, Bytes(16, std::byte{7})});
  image.pieces.push_back({3, 5, Bytes(9, std::byte{8})});
  image.checksum = checksum_of(image);
  return image;
}

TEST(StateImage, VerifiesWhatWasSealed) {
  const StateImage image = sealed_image();
  EXPECT_TRUE(verify(image, "model|layout"));
  EXPECT_EQ(image.bytes(), 5 * sizeof(Token) + 25);
}

TEST(StateImage, RefusesAnotherIdentity) {
  const auto verdict = verify(sealed_image(), "another model|layout");
  ASSERT_FALSE(verdict);
  EXPECT_NE(verdict.error().message.find("another model"), std::string::npos);
}

TEST(StateImage, RefusesEveryFlippedBit) {
  for (std::size_t piece = 0; piece < 2; ++piece) {
    for (std::size_t at = 0; at < sealed_image().pieces[piece].bytes.size(); ++at) {
      StateImage image = sealed_image();
      image.pieces[piece].bytes[at] ^= std::byte{1};
      EXPECT_FALSE(verify(image, "model|layout")) << piece << " " << at;
    }
  }
  for (Token& token : sealed_image().tokens) {
    StateImage image = sealed_image();
    image.tokens[static_cast<std::size_t>(token - 1)] ^= 1;
    EXPECT_FALSE(verify(image, "model|layout"));
  }
}

TEST(StateImage, RefusesBytesThatMovedBetweenPieces) {
  StateImage image = sealed_image();
  image.pieces[0].bytes.push_back(image.pieces[1].bytes.front());
  image.pieces[1].bytes.erase(image.pieces[1].bytes.begin());
  EXPECT_FALSE(verify(image, "model|layout"));
}

TEST(StateImage, RefusesGapsAndMissingTokens) {
  StateImage gap = sealed_image();
  gap.pieces[1].begin = 4;
  gap.checksum = checksum_of(gap);
  EXPECT_FALSE(verify(gap, "model|layout"));
  StateImage short_image = sealed_image();
  short_image.pieces.pop_back();
  short_image.checksum = checksum_of(short_image);
  EXPECT_FALSE(verify(short_image, "model|layout"));
}

}  // namespace
}  // namespace uma::kv
