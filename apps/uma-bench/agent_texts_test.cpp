#include "uma-bench/agent_texts.h"

#include <algorithm>
#include <set>

#include <boost/json.hpp>
#include <gtest/gtest.h>

namespace uma::bench {
namespace {

AgentTexts make(const AgentOptions& options, std::uint64_t seed = 1) {
  PromptMaker prompts(seed);
  Random random(seed);
  return make_agent_texts(options, prompts, random);
}

std::int64_t words_in(const std::string& text) {
  return std::ranges::count(text, ' ') + 1;
}

TEST(AgentTexts, AreTheSameForTheSameSeed) {
  const AgentTexts one = make({}), same = make({}), other = make({}, 2);
  EXPECT_EQ(one.tools, same.tools);
  EXPECT_EQ(one.turns[1][7].text, same.turns[1][7].text);
  EXPECT_NE(one.turns[1][7].text, other.turns[1][7].text);
}

TEST(AgentTexts, EveryTaskBeginsWithAUserAndGoesOnWithResultsOfTools) {
  const AgentTexts texts = make({.agents = 2, .turns = 7, .task_turns = 3});
  ASSERT_EQ(texts.turns.size(), 2u);
  for (const std::vector<AgentTurn>& turns : texts.turns) {
    ASSERT_EQ(turns.size(), 7u);
    for (std::size_t number = 0; number < turns.size(); ++number) {
      EXPECT_EQ(turns[number].begins_task, number % 3 == 0);
      EXPECT_EQ(turns[number].call.id.empty(), turns[number].begins_task);
      EXPECT_EQ(turns[number].summarized.empty(), number == 0 || !turns[number].begins_task) << "a finished task is summarized";
    }
  }
}

TEST(AgentTexts, ToolsAndCallsAreJson) {
  const AgentTexts texts = make({.turns = 4, .tools = 7});
  const boost::json::array tools = boost::json::parse(texts.tools).as_array();
  std::set<std::string> names;
  for (const boost::json::value& tool : tools) names.emplace(tool.at("function").at("name").as_string());
  EXPECT_EQ(names.size(), 7u);
  const ToolCall& call = texts.turns[0][1].call;
  EXPECT_TRUE(names.contains(call.name));
  EXPECT_TRUE(boost::json::parse(call.arguments).at("path").is_string());
}

TEST(AgentTexts, ScaleMultipliesLengths) {
  const AgentOptions options{.turns = 2, .scale = 0.1, .system_words = 500, .task_words = 40};
  const AgentTexts texts = make(options);
  EXPECT_EQ(words_in(texts.system), 50);
  EXPECT_EQ(words_in(texts.turns[0][0].text), 4);
  EXPECT_EQ(scaled(3, 0.01), 1) << "no text is empty";
}

TEST(DrawLength, StaysInItsRangeAndIsShortMoreOftenThanLong) {
  Random random(1);
  int short_count = 0;
  for (int i = 0; i < 1000; ++i) {
    const int length = draw_length(200, 4000, random);
    ASSERT_GE(length, 200);
    ASSERT_LE(length, 4000);
    short_count += length < 2100 ? 1 : 0;
  }
  EXPECT_GT(short_count, 700);
  EXPECT_EQ(draw_length(5, 5, random), 5);
}

}  // namespace
}  // namespace uma::bench
