#include "llm/text_cuts.h"

#include <string>

#include <gtest/gtest.h>

namespace uma::llm {
namespace {

const TextCuts kCuts({{.text = "<s>"}, {.text = "<s>>"}, {.text = "ab"}, {.text = ""}, {.text = "ab"}});

TEST(TextCuts, AreWhereATokenBeginsOrEnds) {
  EXPECT_EQ(kCuts.next("one<s>two", 0), 3u);
  EXPECT_EQ(kCuts.next("one<s>two", 4), 6u);
  EXPECT_EQ(kCuts.next("<s>one<s>", 0), 3u) << "nothing is before the first";
  EXPECT_EQ(kCuts.next("<s>one<s>", 4), 6u);
  EXPECT_EQ(kCuts.next("no token", 0), 8u);
  EXPECT_EQ(kCuts.next("", 0), 0u);
  EXPECT_EQ(kCuts.next("x<s>", 9), 4u);
}

TEST(TextCuts, AreNotInsideALongerToken) {
  EXPECT_EQ(kCuts.next("x<s>><s>", 0), 1u);
  EXPECT_EQ(kCuts.next("x<s>><s>", 2), 5u);
}

TEST(TextCuts, AreNotWhereTokensOverlap) {
  const TextCuts overlapping({{.text = "abc"}, {.text = "cde"}});
  EXPECT_EQ(overlapping.next("x abcde abc", 0), 8u) << "which of both the library takes is its own business";
  const TextCuts longer({{.text = "abc"}, {.text = "cdef"}});
  EXPECT_EQ(longer.next("x abcdef", 0), 8u) << "the longer one is found, but is not looked for";
  const TextCuts shorter({{.text = "abcd"}, {.text = "de"}});
  EXPECT_EQ(shorter.next("x abcde", 0), 2u) << "the library looks for the longer one first";
  EXPECT_EQ(shorter.next("x abcde", 3), 6u);
}

TEST(TextCuts, AreInRunsOfOneByte) {
  const TextCuts runs({{.text = "\n"}, {.text = "\n\n"}, {.text = "\n\n\n"}});
  EXPECT_EQ(runs.next(std::string(100, '\n'), 10), 12u);
}

TEST(TextCuts, AreNotWhereBlanksAreTakenAway) {
  const TextCuts cuts(
      {{.text = "<end>", .takes_blanks_before = true}, {.text = "<s>", .takes_blanks_behind = true}, {.text = "  "}});
  EXPECT_EQ(cuts.next("one  <end> two<s> x", 0), 10u);
  EXPECT_EQ(cuts.next("one<s>  x<s>", 4), 9u) << "the blanks may be a token of their own, or gone";
}

TEST(TextCuts, AreBeforeCharactersThatStandAlone) {
  TextCuts::Characters joined(0x3000);
  joined['a'] = joined['b'] = joined[0xE9] = true;
  const TextCuts cuts({{.text = "<\n>"}}, joined);
  EXPECT_EQ(cuts.next("aab\nab", 0), 3u);
  EXPECT_EQ(cuts.next("aab\nab", 4), 6u);
  EXPECT_EQ(cuts.next("ab\u00e9ab\u00ea", 0), 6u);
  EXPECT_EQ(cuts.next("ab\U0001f642\U0001f642", 3), 6u);
  EXPECT_EQ(cuts.next("ab\xf0\n\n\n\n", 0), 6u) << "the library takes four bytes as one character";
  EXPECT_EQ(cuts.next("ab<\n>\n", 3), 5u) << "not inside of a special token";
  EXPECT_EQ(TextCuts({}).next("\n\n", 1), 2u) << "another tokenizer may join them";
  const TextCuts taking({{.text = "<end>", .takes_blanks_before = true}}, joined);
  EXPECT_EQ(taking.next("a\n\n<end>", 0), 8u);
}

}  // namespace
}  // namespace uma::llm
