#include "llm/picture/prompt_weights.h"

#include <format>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::llm {
namespace {

using ::testing::HasSubstr;

// "text*weight|…"; a part behind BREAK begins with "/".
std::string read(std::string_view prompt) {
  std::string out;
  const auto parts = read_prompt(prompt);
  EXPECT_TRUE(parts.has_value()) << (parts ? "" : parts.error().message);
  if (!parts) return out;
  for (const PromptPart& part : *parts)
    out += std::format("{}{}{}*{:.4g}", out.empty() ? "" : "|", part.begins_piece ? "/" : "", part.text, part.weight);
  return out;
}

TEST(PromptWeightsTest, ReadsTheWeightsOfWebUi) {
  EXPECT_EQ(read(""), "");
  EXPECT_EQ(read("a cat"), "a cat*1");
  EXPECT_EQ(read("a (red) cat"), "a *1|red*1.1| cat*1");
  EXPECT_EQ(read("((red))"), "red*1.21");
  EXPECT_EQ(read("[red]"), "red*0.9091");
  EXPECT_EQ(read("(red:1.5) cat"), "red*1.5| cat*1");
  EXPECT_EQ(read("(a (b:2) c:0.5)"), "a *0.5|b*1| c*0.5");
  EXPECT_EQ(read("(red: 0)"), "red*0");
  EXPECT_EQ(read(R"(smile \(art\) \[x\] \\ \n)"), R"(smile (art) [x] \ \n*1)");
}

TEST(PromptWeightsTest, ReadsBracketsThatDoNotFit) {
  EXPECT_EQ(read("a (b"), "a *1|b*1.1") << "closed at the end";
  EXPECT_EQ(read("a) b]"), "a) b]*1");
  EXPECT_EQ(read("(a]"), "a]*1.1");
  EXPECT_EQ(read("[a:1.3]"), "a:1.3*0.9091") << "weights are for round brackets";
  EXPECT_EQ(read("a:1.3)"), "a:1.3)*1");
  EXPECT_EQ(read("(a:b)"), "a:b*1.1");
  EXPECT_EQ(read("(a:1e9)"), "a*10") << "bounded";
  EXPECT_EQ(read("(a:nan)"), "a:nan*1.1");
  EXPECT_EQ(read("(((a:1e38):1e38):0)"), "a*0");
  EXPECT_EQ(read("()[]"), "");
  EXPECT_EQ(read(std::string(3000, '(') + "a"), "a*10");
}

TEST(PromptWeightsTest, BreakBeginsAPiece) {
  EXPECT_EQ(read("a BREAK b"), "a *1|/ b*1");
  EXPECT_EQ(read("a, BREAK, b"), "a, *1|/, b*1");
  EXPECT_EQ(read("BREAKFAST aBREAK"), "BREAKFAST aBREAK*1");
}

TEST(PromptWeightsTest, RefusesWhatItWouldDrop) {
  const auto found = read_prompt("a cat <lora:detail:0.8>");
  ASSERT_FALSE(found.has_value());
  EXPECT_EQ(found.error().code, ErrorCode::proto_field);
  EXPECT_THAT(found.error().message, HasSubstr("<lora:"));
}

}  // namespace
}  // namespace uma::llm
