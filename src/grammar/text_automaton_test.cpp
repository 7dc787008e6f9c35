#include "grammar/text_automaton.h"

#include <format>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace uma::grammar {
namespace {

bool accepts(const TextAutomaton& automaton, std::string_view text) {
  if (automaton.states.empty()) return false;
  std::uint32_t state = 0;
  while (!text.empty()) {
    const std::uint32_t code_point = take_code_point(text);
    bool goes_on = false;
    for (const TextAutomaton::Step& step : automaton.states[state].steps) {
      if (!contains(step.characters, code_point)) continue;
      state = step.to;
      goes_on = true;
      break;
    }
    if (!goes_on) return false;
  }
  return automaton.states[state].is_final;
}

Pattern pattern(std::string_view text) {
  return read_pattern(text).value();
}

// All texts of up to five characters of "ab1".
std::vector<std::string> short_texts() {
  std::vector<std::string> texts{""};
  for (std::size_t i = 0; i < texts.size() && texts[i].size() < 5; ++i) {
    for (const char c : std::string_view("ab1")) texts.push_back(texts[i] + c);
  }
  return texts;
}

TEST(TextAutomaton, HasTheTextsThatSatisfyEachCondition) {
  AutomatonBudget budget;
  const TextLanguage language{
      .all = {pattern("^[ab1]+$"), pattern("a")}, .none = {pattern("aa"), pattern("^b.*1$")}, .min = 2, .max = 4};
  const auto automaton = make_automaton(language, budget);
  ASSERT_TRUE(automaton);
  for (const std::string& text : short_texts()) {
    const bool is_right = text.contains('a') && !text.contains("aa") && !(text.starts_with('b') && text.ends_with('1')) &&
                          text.size() >= 2 && text.size() <= 4;
    EXPECT_EQ(accepts(*automaton, text), is_right) << text;
    EXPECT_EQ(matches(language, text, budget), is_right) << text;
  }
}

TEST(TextAutomaton, AssertionsHoldAtTheirPlace) {
  AutomatonBudget budget;
  const auto count_of = [&](std::string_view expression) {
    const auto automaton = make_automaton({.all = {pattern(expression)}}, budget).value();
    int count = 0;
    for (const std::string& text : short_texts()) count += accepts(automaton, text) ? 1 : 0;
    return count;
  };
  EXPECT_EQ(count_of("^(?=a)(?!.*b).{2}$"), 2) << "aa, a1";
  EXPECT_EQ(count_of("^(?:(?=.*1$)a)*1$"), 5) << "up to four a and a 1";
  EXPECT_EQ(count_of("^(?:(?!ab).)*$"), 1 + 3 + 8 + 21 + 55 + 144) << "without ab";
  EXPECT_EQ(count_of("^.*(?<=a)(?<!ba)$"), count_of("^(?:.*[^b])?a$"));
  EXPECT_EQ(count_of("^(?:a|^b)$"), 2);
  EXPECT_EQ(count_of("a^"), 0);
  EXPECT_EQ(count_of("^(?:(?:a*)*)*$"), 6);
  EXPECT_EQ(count_of("^(?:a?){3}$"), 4);
}

TEST(TextAutomaton, EqualStatesAreJoined) {
  AutomatonBudget budget;
  EXPECT_EQ(make_automaton({.all = {pattern("^(?:ab|bb)*$")}}, budget)->states.size(), 2U);
  const auto divided = make_automaton({.all = {pattern("^\\d+$")}, .divisor = Divisor{.units = 1000}}, budget);
  ASSERT_TRUE(divided);
  EXPECT_LE(divided->states.size(), 5U) << "the zeros at the end count";
}

TEST(TextAutomaton, LargeOnesAreRefusedWithinABoundOfWork) {
  for (const std::string_view expression :
       {"^(?:a|b)*a(?:a|b){200}$", "^(?=.{1,253}$)(?:[a-z]{1,61}\\.)*$", "^(?:(?=.*a.{9}b)a|b)*$", "^(?:[a-z]{1000}){1000}$",
        "^(?!(?:(?!a.{8}b)[ab])*$).*$"}) {
    AutomatonBudget budget;
    const std::uint64_t before = budget.work_left;
    (void)make_automaton({.all = {pattern(expression)}, .none = {pattern("x")}, .max = 3000}, budget);
    EXPECT_LE(budget.work_left, before) << expression;
    EXPECT_FALSE(make_automaton({.all = {pattern(expression)}, .max = 3000}, budget)) << expression;
  }
}

TEST(ReadPattern, RefusesWhatItCannotRead) {
  for (const std::string_view expression : {"(a", "a)", "[a", "*", "a**", "a{3,1}", "(?i)a", "\\A", "(a|b)\\1", "\\1(a)",
                                            "(?:(a)|b)\\1", "(a)?\\1", "\\p{Nonsense}", "\\u12", "\\ud800", "[b-a]"}) {
    EXPECT_FALSE(read_pattern(expression)) << expression;
  }
}

}  // namespace
}  // namespace uma::grammar
