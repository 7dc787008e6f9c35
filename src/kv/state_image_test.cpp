#include "kv/state_image.h"

#include <gtest/gtest.h>

namespace uma::kv {
namespace {

StateImage image_of_two_pieces() {
  StateImage image;
  image.identity = "model|layout";
  image.tokens = {1, 2, 3, 4, 5};
  image.pieces.push_back({0, 3, Bytes(16, std::byte{7})});
  image.pieces.push_back({3, 5, Bytes(9, std::byte{8})});
  return image;
}

TEST(StateImage, FitsAContextOfItsIdentity) {
  const StateImage image = image_of_two_pieces();
  EXPECT_TRUE(check_fits(image, "model|layout"));
  EXPECT_EQ(image.bytes(), 5 * sizeof(Token) + 25);
  const auto verdict = check_fits(image, "another model|layout");
  ASSERT_FALSE(verdict);
  EXPECT_NE(verdict.error().message.find("another model"), std::string::npos);
}

TEST(StateImage, EveryFlippedBitChangesTheChecksum) {
  const Checksum checksum = checksum_of(image_of_two_pieces());
  for (std::size_t piece = 0; piece < 2; ++piece) {
    for (std::size_t at = 0; at < image_of_two_pieces().pieces[piece].bytes.size(); ++at) {
      StateImage image = image_of_two_pieces();
      image.pieces[piece].bytes[at] ^= std::byte{1};
      EXPECT_FALSE(checksum_of(image) == checksum) << piece << " " << at;
    }
  }
  for (std::size_t at = 0; at < 5; ++at) {
    StateImage image = image_of_two_pieces();
    image.tokens[at] ^= 1;
    EXPECT_FALSE(checksum_of(image) == checksum) << at;
  }
}

TEST(StateImage, SoDoBytesThatMoveBetweenPieces) {
  StateImage image = image_of_two_pieces();
  image.pieces[0].bytes.push_back(image.pieces[1].bytes.front());
  image.pieces[1].bytes.erase(image.pieces[1].bytes.begin());
  EXPECT_FALSE(checksum_of(image) == checksum_of(image_of_two_pieces()));
}

TEST(StateImage, RefusesGapsAndMissingTokens) {
  StateImage gap = image_of_two_pieces();
  gap.pieces[1].begin = 4;
  EXPECT_FALSE(check_fits(gap, "model|layout"));
  StateImage short_image = image_of_two_pieces();
  short_image.pieces.pop_back();
  EXPECT_FALSE(check_fits(short_image, "model|layout"));
}

}  // namespace
}  // namespace uma::kv
