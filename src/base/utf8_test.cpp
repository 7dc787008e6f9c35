#include "base/utf8.h"

#include <gtest/gtest.h>

namespace uma {
namespace {

TEST(Utf8, AcceptsWholeCharactersOfEveryLength) {
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("plain"));
  EXPECT_TRUE(is_utf8("\u00e9\u20ac\U0001F600"));
}

TEST(Utf8, RefusesOverlongSurrogateOutOfRangeAndLoneBytes) {
  for (const char* bad :
       {"\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80", "\xff", "a\xc3", "\xf0\x80\x80\x80"}) {
    EXPECT_FALSE(is_utf8(bad)) << ::testing::PrintToString(bad);
  }
}

TEST(Utf8, TailIsTheStartOfACharacterThatCouldStillComplete) {
  EXPECT_EQ(incomplete_utf8_tail("abc"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("a\xe2"), 1u);
  EXPECT_EQ(incomplete_utf8_tail("a\xe2\x82"), 2u);
  EXPECT_EQ(incomplete_utf8_tail("\xf0\x9f\x98"), 3u);
  EXPECT_EQ(incomplete_utf8_tail("\xe2\x82\xac"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("\xff"), 0u) << "a byte that begins nothing is not waited for";
  EXPECT_EQ(incomplete_utf8_tail("\xe0\x80"), 0u) << "an overlong form can never complete";
}

TEST(Utf8, ReplacesOnlyWhatIsInvalid) {
  EXPECT_EQ(replace_invalid_utf8("a\xff\u20ac\xe2\x82"), "a\ufffd\u20ac\ufffd");
}

TEST(Utf8, CountsTheValidBytesAtTheBeginning) {
  EXPECT_EQ(valid_utf8_length(""), 0u);
  EXPECT_EQ(valid_utf8_length("ab\u20ac"), 5u);
  EXPECT_EQ(valid_utf8_length("ab\xe2\x82"), 2u);
  EXPECT_EQ(valid_utf8_length("a\xff\u20ac"), 1u);
}

}  // namespace
}  // namespace uma
