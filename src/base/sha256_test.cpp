#include "base/sha256.h"

#include <gtest/gtest.h>

namespace uma {
namespace {

constexpr const char* kOfAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";  // FIPS 180-4

TEST(Sha256, IsTheSameInPiecesAndAtOnce) {
  Sha256 sum;
  sum.add("a");
  EXPECT_NE(sum.hex(), kOfAbc);
  sum.add("bc");
  EXPECT_EQ(sum.hex(), kOfAbc);
  EXPECT_EQ(sum.digest(), sha256("abc"));
}

TEST(Sha256, ReadsItsHexadecimalForm) {
  const std::string known = kOfAbc;
  EXPECT_EQ(parse_sha256_hex(known), sha256("abc"));
  EXPECT_EQ(parse_sha256_hex("BA" + known.substr(2)), sha256("abc"));
  for (const std::string& wrong :
       {known.substr(1), known + "0", "g" + known.substr(1), "-1" + known.substr(2), std::string()}) {
    EXPECT_EQ(parse_sha256_hex(wrong), std::nullopt) << wrong;
  }
}

TEST(Sha256, TellsDigestsApart) {
  Sha256Digest other = sha256("abc");
  EXPECT_TRUE(are_equal(sha256("abc"), other));
  other.back() ^= 1;
  EXPECT_FALSE(are_equal(sha256("abc"), other));
}

}  // namespace
}  // namespace uma
