#include "chat/reply/thinking.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::chat {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

ChatOptions settled(std::string_view chat_template, std::string arguments, std::optional<std::int32_t> budget = {},
                    std::string_view family = "hermes") {
  ChatOptions options;
  options.template_arguments = std::move(arguments);
  options.thinking_budget = budget;
  settle_thinking(chat_template, family_named(family), options);
  return options;
}

TEST(SettleThinking, UsesTheSwitchThatTheTemplateNames) {
  EXPECT_EQ(settled("if enable_thinking", R"({"thinking":false})").template_arguments,
            R"({"thinking":false,"enable_thinking":false})");
  EXPECT_EQ(settled("if thinking", R"({"enable_thinking":true})").template_arguments,
            R"({"enable_thinking":true,"thinking":true})");
  EXPECT_EQ(settled("if enable_thinking", R"({"reasoning_effort":"low"})").template_arguments,
            R"({"reasoning_effort":"low","enable_thinking":true})");
  EXPECT_EQ(settled("message.thinking 'thinking' rethinking", R"({"enable_thinking":true})").template_arguments,
            R"({"enable_thinking":true})")
      << "it is no variable";
  EXPECT_EQ(settled("nothing", R"({"enable_thinking":true})").template_arguments, R"({"enable_thinking":true})");
}

TEST(SettleThinking, ARequestThatSaysNothingStaysAsItIs) {
  const ChatOptions plain = settled("if enable_thinking and reasoning_effort and thinking_budget", "");
  EXPECT_EQ(plain.template_arguments, "");
  EXPECT_EQ(plain.thinking_budget, std::nullopt);
  EXPECT_EQ(settled("if enable_thinking", R"({"x":1})").template_arguments, R"({"x":1})");
  EXPECT_EQ(settled("if enable_thinking", "not JSON").template_arguments, "not JSON");
}

TEST(SettleThinking, AReplyWithoutThoughtsHasABudgetOfNone) {
  for (const char* off : {R"({"enable_thinking":false})", R"({"thinking":false})", R"({"reasoning_effort":"none"})"}) {
    EXPECT_EQ(settled("", off).thinking_budget, 0) << off;
    EXPECT_EQ(settled("", off, 100).thinking_budget, 0) << off;
  }
  EXPECT_EQ(settled("if enable_thinking", "", 0).template_arguments, R"({"enable_thinking":false})");
  EXPECT_EQ(settled("", R"({"reasoning_effort":"low"})").thinking_budget, std::nullopt);
  EXPECT_EQ(settled("", R"({"enable_thinking":true})", 7).thinking_budget, 7);
}

TEST(SettleThinking, EffortsAreThoseOfTheFamily) {
  const auto effort = [](std::string_view family, const std::string& asked) {
    return settled("reasoning_effort", R"({"reasoning_effort":")" + asked + "\"}", {}, family).template_arguments;
  };
  for (const auto& [asked, known] : {std::pair("minimal", "low"),
                                     {"low", "low"},
                                     {"medium", "medium"},
                                     {"high", "high"},
                                     {"xhigh", "high"},
                                     {"max", "high"},
                                     {"odd", "odd"}}) {
    EXPECT_EQ(effort("gpt-oss", asked), std::string(R"({"reasoning_effort":")") + known + "\"}") << asked;
  }
  EXPECT_EQ(effort("gpt-oss", "none"), R"({"reasoning_effort":"low"})") << "and a budget of 0";
  EXPECT_EQ(effort("glm", "low"), R"({"reasoning_effort":"high"})");
  EXPECT_EQ(effort("glm", "max"), R"({"reasoning_effort":"max"})");
  EXPECT_EQ(effort("hermes", "max"), R"({"reasoning_effort":"high"})") << "no template has to know it";
  EXPECT_EQ(settled("reasoning_effort == 'max'", R"({"reasoning_effort":"max"})").template_arguments,
            R"({"reasoning_effort":"max"})");
  EXPECT_EQ(settled("reasoning_effort", "", 0, "gpt-oss").template_arguments, R"({"reasoning_effort":"low"})");
  EXPECT_EQ(settled("enable_thinking reasoning_effort", "", 0, "glm").template_arguments, R"({"enable_thinking":false})");
}

TEST(SettleThinking, ATemplateMayKnowTheBudget) {
  EXPECT_EQ(settled("thinking_budget", "", 512).template_arguments, R"({"thinking_budget":512})");
  EXPECT_EQ(settled("thinking_budget", "", -1).template_arguments, "");
  const ChatOptions as_argument = settled("nothing", R"({"thinking_budget":64})");
  EXPECT_EQ(as_argument.thinking_budget, 64);
  EXPECT_EQ(settled("", R"({"thinking_budget":1e300})").thinking_budget, std::nullopt);
}

TEST(HistoryVariables, AreThoseThatTheTemplateNames) {
  EXPECT_THAT(history_variables("if clear_thinking or drop_thinking"),
              ElementsAre(Pair("clear_thinking", false), Pair("drop_thinking", false)));
  EXPECT_THAT(history_variables("if preserve_thinking"), ElementsAre(Pair("preserve_thinking", true)));
  EXPECT_THAT(history_variables("if enable_thinking"), IsEmpty());
}

constexpr Token kText = 1;
constexpr Token kClose = 2;
constexpr Token kNext = 3;
constexpr Token kAnswer = 4;

TEST(ThinkingBudget, ClosesThoughtsOnceItIsUsedUp) {
  ThinkingBudget budget({.tokens_max = 2, .closing = {kClose, kNext}, .answer = {kClose, kNext, kAnswer}});
  EXPECT_EQ(budget.next(false), std::nullopt);
  budget.push(kText, false);  // The opening mark.
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(budget.next(true), std::nullopt);
    budget.push(kText, true);
  }
  EXPECT_EQ(budget.next(true), kClose);
  EXPECT_EQ(budget.next(true), kClose) << "nothing was added";
  budget.push(kClose, true);
  EXPECT_EQ(budget.next(false), kNext);
  budget.push(kNext, false);
  EXPECT_EQ(budget.next(false), std::nullopt);
  budget.push(kText, false);
  for (const Token token : {kClose, kNext, kAnswer}) {  // It begins to think again.
    EXPECT_EQ(budget.next(true), token);
    budget.push(token, true);
  }
  EXPECT_EQ(budget.next(true), std::nullopt) << "the text of the mark is not decided yet";
}

TEST(ThinkingBudget, GivesWayToAConstraint) {
  ThinkingBudget budget({.tokens_max = 0, .closing = {kClose}});
  EXPECT_EQ(budget.next(true), kClose);
  budget.push(kText, true);
  EXPECT_FALSE(budget.is_closing());
  EXPECT_EQ(budget.next(true), kClose);
}

TEST(ThinkingBudget, ClosesThoughtsThatTheModelEnds) {
  ThinkingBudget budget({.tokens_max = 100, .closing = {kClose}});
  EXPECT_EQ(budget.close(), kClose);
  budget.push(kClose, true);
  EXPECT_EQ(budget.next(false), std::nullopt);
}

}  // namespace
}  // namespace uma::chat
