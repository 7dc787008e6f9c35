#include "engine/model/grammar_cache.h"

#include <format>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "base/endable_work.h"
#include "testing/fake_model.h"

namespace uma::engine {
namespace {

class GrammarCacheTest : public ::testing::Test {
 protected:
  static GenerateOptions following(const std::string& grammar) {
    GenerateOptions options;
    options.grammar = grammar;
    return options;
  }
  // Null: the grammar is refused.
  static const grammar::Grammar* whole(GrammarCache& cache, const GenerateOptions& options) {
    const auto compiled = cache.compile(format(), options);
    return compiled ? compiled->whole.get() : nullptr;
  }
  static const chat::ChatFormat& format() {
    static const chat::ChatFormat kFormat(
        std::make_shared<const testing::FakeModel>(testing::FakeOptions{.has_chat_template = true}));
    return kFormat;
  }
};

TEST_F(GrammarCacheTest, WhatWasCompiledIsFoundAgain) {
  GrammarCache cache;
  const grammar::Grammar* first = whole(cache, following("root ::= \"a\""));
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(whole(cache, following("root ::= \"a\"")), first);
  EXPECT_NE(whole(cache, following("root ::= \"b\"")), first);
  GenerateOptions other = following("root ::= \"a\"");
  other.sampling.temperature = 1;
  other.max_tokens = 7;
  EXPECT_EQ(whole(cache, other), first) << "nothing of that is compiled";
}

// The tokenizer refuses texts of ended requests, so that such a grammar may lack marks.
TEST_F(GrammarCacheTest, NothingIsKeptOfARequestThatHasEnded) {
  GrammarCache cache;
  std::stop_source end;
  end.request_stop();
  {
    const EndableWork work(end.get_token());
    EXPECT_EQ(cache.compile(format(), following("root ::= \"a\"")).error().code, ErrorCode::limit_wait);
  }
  EXPECT_NE(whole(cache, following("root ::= \"a\"")), nullptr);
}

TEST_F(GrammarCacheTest, NothingIsTakenForAnother) {
  GrammarCache cache;
  GenerateOptions schema;
  schema.json_schema = R"({"type":"null"})";
  const grammar::Grammar* first = whole(cache, schema);
  EXPECT_NE(whole(cache, following(schema.json_schema)), first) << "the same text as a grammar";
  EXPECT_EQ(cache.compile(format(), {})->bytes(), 0u);

  GenerateOptions calls;
  calls.chat.tools = R"([{"type":"function","function":{"name":"f"}}])";
  calls.chat.tool_names = {"f"};
  calls.chat.tool_choice = ToolChoice::required;
  const grammar::Grammar* required = whole(cache, calls);
  calls.chat.has_parallel_calls = false;
  EXPECT_NE(whole(cache, calls), required);
}

TEST_F(GrammarCacheTest, TheToolsAreReadOnce) {
  GrammarCache cache;
  GenerateOptions calls;
  calls.chat.tools = R"([{"type":"function","function":{"name":"f"}}])";
  calls.chat.tool_names = {"f"};
  const auto tools = cache.compile(format(), calls)->tools;
  ASSERT_NE(tools, nullptr);
  EXPECT_TRUE(tools->contains("f"));
  EXPECT_EQ(cache.compile(format(), calls)->tools, tools);
  EXPECT_EQ(cache.compile(format(), following("root ::= \"a\""))->tools, nullptr);
}

TEST_F(GrammarCacheTest, WhatIsRefusedStaysSo) {
  GrammarCache cache;
  const auto first = cache.compile(format(), following("nonsense"));
  const auto second = cache.compile(format(), following("nonsense"));
  ASSERT_FALSE(first || second);
  EXPECT_EQ(first.error().message, second.error().message);
  GenerateOptions schema;
  schema.json_schema = "[]";
  for (const std::string_view field : {"one.field", "another.field"}) {
    schema.schema_field = field;
    EXPECT_EQ(cache.compile(format(), schema).error().field, field);
  }
}

TEST_F(GrammarCacheTest, TheLastUsedAreKept) {
  GrammarCache cache(16'384);
  const grammar::Grammar* used = whole(cache, following("root ::= \"used\""));
  const std::weak_ptr<const grammar::Grammar> forgotten = cache.compile(format(), following("root ::= \"forgotten\""))->whole;
  EXPECT_FALSE(forgotten.expired());
  for (int i = 0; i < 100; ++i) {
    ASSERT_NE(whole(cache, following(std::format("root ::= \"other{}\"", i))), nullptr);
    EXPECT_EQ(whole(cache, following("root ::= \"used\"")), used);
  }
  EXPECT_TRUE(forgotten.expired());
}

}  // namespace
}  // namespace uma::engine
