// Chats with tools and reasoning through router and lane, on a model with scripted replies.
#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "engine/engine_test_support.h"

namespace uma::engine {
namespace {

constexpr std::string_view kTemplate =
    "{% if tools %}<|im_start|>system\n<tool_call> {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
constexpr std::string_view kCall = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
constexpr std::string_view kTools = R"([{"type":"function","function":{"name":"f"}}])";

class ToolCalls : public ::testing::Test, protected EngineBench {
 protected:
  ToolCalls() : EngineBench({.cells = 16'384, .sequences = 4, .has_chat_template = true, .chat_template = kTemplate}) {}

  void serve(std::string_view says) {
    options_.says = says;
    model_ = std::make_shared<FakeModel>(options_);
    start_router();
    load();
  }

  GenerateRequest ask(const std::string& question) {
    GenerateRequest request;
    request.input.messages = {{"user", question}};
    request.options.chat.tools = kTools;
    request.options.chat.tool_names = {"f"};
    return request;
  }

  // The whole conversation, as the template writes it at once.
  [[nodiscard]] std::vector<Token> written_at_once(const kv::SessionRecord& record, std::string_view tools) const {
    return written(record.messages, {.messages = {}, .tokens = {}, .replies = {}, .unix_s = record.created_s, .tools = tools});
  }
};

TEST_F(ToolCalls, AreToldAsTheyCome) {
  serve(kCall);
  const auto sink = generate(ask("what?"));
  EXPECT_EQ(sink->eos().reason, FinishReason::tool_calls);
  EXPECT_EQ(sink->text, "");
  ASSERT_EQ(sink->calls.size(), 1u);
  EXPECT_EQ(sink->calls[0].name, "f");
  EXPECT_EQ(sink->calls[0].text, R"({"a": 1})");
  EXPECT_TRUE(sink->eos().parts.empty()) << "all of it was told";
}

TEST_F(ToolCalls, TheToolsCountAsPartOfThePrompt) {
  serve("yes");
  const auto counted = wait_for(router_->generations().count_tokens(kTenant, ask("what?"), {}));
  ASSERT_TRUE(counted) << counted.error().message;
  EXPECT_EQ(generate(ask("what?"))->prompt_tokens, *counted);
  GenerateRequest plain = ask("what?");
  plain.options.chat.tools.clear();
  EXPECT_LT(wait_for(router_->generations().count_tokens(kTenant, plain, {})).value(), *counted);
  plain.input.messages.front().content.assign(40'000, 'x');
  EXPECT_GT(wait_for(router_->generations().count_tokens(kTenant, plain, {})).value(), 40'000) << "more than the context";
  plain.model = "unknown";
  EXPECT_EQ(wait_for(router_->generations().count_tokens(kTenant, plain, {})).error().code, ErrorCode::model_unknown);
}

TEST_F(ToolCalls, AReplyTellsItsStopString) {
  serve("one, two, three");
  GenerateRequest request = ask("count");
  request.options.stop = {"three", "two"};
  const auto sink = generate(request);
  EXPECT_EQ(sink->eos().reason, FinishReason::stop);
  EXPECT_EQ(sink->eos().stop_string, "two");
  EXPECT_EQ(generate(ask("count"))->eos().stop_string, "");
}

TEST_F(ToolCalls, AreWholeInAnAnswerThatDoesNotStream) {
  serve(kCall);
  GenerateRequest request = ask("what?");
  request.options.stream = false;
  const auto sink = generate(request);
  ASSERT_EQ(sink->eos().parts.size(), 1u);
  EXPECT_EQ(sink->eos().parts[0].text, R"({"a": 1})");
  EXPECT_EQ(sink->eos().parts[0].id.size(), 9u);
  EXPECT_TRUE(sink->calls.empty());
}

TEST_F(ToolCalls, WithoutToolsTheSameTextIsContent) {
  serve(kCall);
  GenerateRequest request = ask("what?");
  request.options.chat.tools.clear();
  const auto sink = generate(request);
  EXPECT_EQ(sink->text, kCall);
  EXPECT_EQ(sink->eos().reason, FinishReason::stop);
}

TEST_F(ToolCalls, TheFirstOneIsTheLastWhereTheyAreNotParallel) {
  const std::string twice = std::string(kCall) + std::string(kCall);
  serve(twice);
  EXPECT_EQ(generate(ask("what?"))->calls.size(), 2u);
  GenerateRequest request = ask("what?");
  request.options.chat.has_parallel_calls = false;
  const auto sink = generate(request);
  EXPECT_EQ(sink->calls.size(), 1u);
  EXPECT_EQ(sink->eos().reason, FinishReason::tool_calls);
}

TEST_F(ToolCalls, AReplyThatIsCutInACallEndsWithLength) {
  serve(kCall);
  GenerateRequest request = ask("what?");
  request.options.max_tokens = static_cast<std::int32_t>(kCall.find("1}"));
  const auto sink = generate(request);
  EXPECT_EQ(sink->eos().reason, FinishReason::length);
  ASSERT_EQ(sink->calls.size(), 1u);
  EXPECT_EQ(sink->calls[0].text, R"({"a": )");
}

TEST_F(ToolCalls, ASlowReaderLosesItsStreamAlsoThere) {
  serve(kCall);
  const auto sink = begin(ask("what?"));
  sink->is_fast = false;
  settle();
  EXPECT_EQ(sink->eos().reason, FinishReason::slow_consumer);
}

TEST_F(ToolCalls, ASessionKeepsThemAndGoesOnFromItsChain) {
  serve(kCall);
  const std::string session = begin_chat();
  GenerateRequest request = ask("what?");
  request.session = session;
  generate(request);
  const kv::RecordPtr first = kept(session);
  ASSERT_EQ(first->messages.size(), 2u);
  EXPECT_EQ(first->messages[1].content, "");
  EXPECT_TRUE(first->messages[1].extra.contains(R"("arguments":"{\"a\": 1}")")) << first->messages[1].extra;

  request.input.messages = {{"tool", "7", R"({"tool_call_id":"x"})"}};
  generate(request);
  const kv::RecordPtr second = kept(session);
  ASSERT_EQ(second->turns.size(), 2u);
  EXPECT_TRUE(std::ranges::equal(first->chain, std::span(second->chain).first(first->chain.size())))
      << "nothing is computed anew";
  kv::SessionRecord asked = *second;
  asked.messages.pop_back();
  const std::vector<Token> prompt = written_at_once(asked, kTools);
  EXPECT_TRUE(std::ranges::equal(prompt, std::span(second->chain).first(prompt.size()))) << "as if all of it came at once";
}

TEST_F(ToolCalls, AResponseGoesOnFromItsCall) {
  serve(kCall);
  GenerateRequest request = ask("what?");
  request.response.emplace();
  request.response->id = "one";
  const std::string session = generate(request)->begun.value().session.value;
  const kv::RecordPtr first = kept(session);
  EXPECT_EQ(first->responses.back()->reason, FinishReason::tool_calls);
  EXPECT_EQ(first->tools, kTools);
  EXPECT_TRUE(first->messages[1].extra.contains("tool_calls"));

  request.session = session;
  request.response->id = "two";
  request.response->previous = "one";
  request.input.messages = {{"tool", "7", R"({"tool_call_id":"x"})"}};
  const auto second = generate(request);
  EXPECT_EQ(second->calls.size(), 1u);
  EXPECT_GE(second->eos().usage.reused_tokens, static_cast<std::int32_t>(first->chain.size()) - 1) << "its result alone is new";
  EXPECT_TRUE(std::ranges::equal(first->chain, std::span(kept(session)->chain).first(first->chain.size())));

  request.response->id = "three";
  request.response->previous = "two";
  request.input.messages = {{"user", "thanks"}};
  request.options.chat.tools.clear();
  request.options.chat.tool_names.clear();
  EXPECT_TRUE(generate(request)->calls.empty());
  const kv::RecordPtr third = kept(session);
  ASSERT_EQ(third->responses.size(), 3u) << "in the same session";
  EXPECT_EQ(third->tools, "");
  kv::SessionRecord asked = *third;
  asked.messages.pop_back();
  const std::vector<Token> prompt = written_at_once(asked, "");
  EXPECT_TRUE(std::ranges::equal(prompt, std::span(asked.chain).first(prompt.size()))) << "written anew";
}

TEST_F(ToolCalls, OtherToolsWriteTheSessionAnew) {
  serve(kCall);
  const std::string session = begin_chat();
  GenerateRequest request = ask("what?");
  request.session = session;
  generate(request);
  request.options.chat.tools = R"([{"type":"function","function":{"name":"other"}}])";
  generate(request);
  kv::SessionRecord asked = *kept(session);
  EXPECT_EQ(asked.tools, request.options.chat.tools);
  asked.messages.pop_back();
  const std::vector<Token> prompt = written_at_once(asked, request.options.chat.tools);
  EXPECT_TRUE(std::ranges::equal(prompt, std::span(asked.chain).first(prompt.size())));
}

TEST_F(ToolCalls, InputThatWaitsIsWrittenWithTheToolsOfWhoGenerates) {
  serve(kCall);
  const std::string session = begin_chat();
  EXPECT_TRUE(append(session, "what?"));
  GenerateRequest request = ask("");
  request.input = {};
  request.session = session;
  EXPECT_EQ(generate(request)->calls.size(), 1u);
  kv::SessionRecord asked = *kept(session);
  ASSERT_EQ(asked.messages.size(), 2u);
  asked.messages.pop_back();
  const std::vector<Token> prompt = written_at_once(asked, kTools);
  EXPECT_TRUE(std::ranges::equal(prompt, std::span(asked.chain).first(prompt.size())));

  const auto refused = generate(request);
  EXPECT_EQ(refused->error().code, ErrorCode::proto_field) << "there is nothing to answer";
}

TEST_F(ToolCalls, ThoughtsAreToldApartAndCounted) {
  serve("<think>hm</think>yes");
  GenerateRequest request = ask("what?");
  EXPECT_EQ(generate(request)->text, "<think>hm</think>yes") << "nobody asked";
  request.options.chat.splits_reasoning = true;
  const auto sink = generate(request);
  EXPECT_EQ(sink->reasoning, "hm");
  EXPECT_EQ(sink->text, "yes");
  EXPECT_EQ(sink->eos().reason, FinishReason::stop);
  EXPECT_EQ(sink->eos().usage.reasoning_tokens, 11) << "from the end of the one mark to the end of the other";
  request.options.stream = false;
  const auto whole = generate(request);
  ASSERT_EQ(whole->eos().parts.size(), 1u);
  EXPECT_EQ(whole->eos().parts[0].text, "hm");
  EXPECT_EQ(whole->eos().text, "yes");
}

TEST_F(ToolCalls, ASessionForgetsThoughtsAsItsTemplateDoes) {
  serve("<think>hm</think>yes");
  const std::string session = begin_chat();
  GenerateRequest request = ask("what?");
  request.session = session;
  request.options.chat.splits_reasoning = true;
  generate(request);
  EXPECT_EQ(kept(session)->messages[1], (ChatMessage{"assistant", "yes", R"({"reasoning_content":"hm"})"}));
  generate(request);
  kv::SessionRecord asked = *kept(session);
  ASSERT_EQ(asked.turns.size(), 2u) << "the turns are found again";
  asked.messages.pop_back();
  const std::vector<Token> prompt = written_at_once(asked, kTools);
  EXPECT_TRUE(std::ranges::equal(prompt, std::span(asked.chain).first(prompt.size())));
}

TEST_F(ToolCalls, AreForcedByTheirSchemas) {
  serve("I would rather talk.");
  GenerateRequest request = ask("what?");
  request.options.chat.tools =
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"enum":["x y"]}},)"
      R"("required":["a"],"additionalProperties":false}}},{"type":"function","function":{"name":"g"}}])";
  request.options.chat.tool_names = {"f", "g"};
  request.options.chat.tool_choice = ToolChoice::named;
  request.options.chat.tool_name = "f";
  request.options.max_tokens = 300;
  const auto sink = generate(request);
  EXPECT_EQ(sink->eos().reason, FinishReason::tool_calls);
  ASSERT_EQ(sink->calls.size(), 1u);
  EXPECT_EQ(sink->calls[0].name, "f");
  EXPECT_TRUE(sink->calls[0].text.contains(R"("x y")")) << sink->calls[0].text;
  request.options.chat.tool_choice = ToolChoice::required;
  request.options.chat.has_parallel_calls = false;
  EXPECT_EQ(generate(request)->calls.size(), 1u);
  request.options.json_schema = R"({"type":"object"})";
  EXPECT_EQ(generate(request)->calls.size(), 1u) << "a format is for a text";
  request.options.json_schema.clear();
  request.options.grammar = "root ::= \"a\"";
  EXPECT_EQ(generate(request)->error().code, ErrorCode::proto_field);
}

TEST_F(ToolCalls, OrATextOfTheSchema) {
  constexpr std::string_view kSchema =
      R"({"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false})";
  const std::string two = std::string(kCall) + "\n" + std::string(kCall);
  serve(two);
  GenerateRequest request = ask("what?");
  request.options.json_schema = kSchema;
  request.options.chat.splits_reasoning = true;
  const auto called = generate(request);
  EXPECT_EQ(called->calls.size(), 2u);
  EXPECT_EQ(called->text, "") << "a call is followed by calls only";
  EXPECT_EQ(called->eos().reason, FinishReason::tool_calls);
  request.options.chat.has_parallel_calls = false;
  EXPECT_EQ(generate(request)->calls.size(), 1u);
}

TEST_F(ToolCalls, TheTextOfASchemaMayHaveTheMarksOfACall) {
  const std::string answer = R"({"a": "<tool_call>{\"name\": \"f\"}</tool_call>"})";
  const std::string says = "<think>hm</think>" + answer;
  serve(says);
  GenerateRequest request = ask("what?");
  request.options.json_schema = R"({"type":"object","properties":{"a":{"type":"string"}},"required":["a"]})";
  request.options.chat.splits_reasoning = true;
  for (const bool streams : {true, false}) {
    request.options.stream = streams;
    const auto sink = generate(request);
    EXPECT_EQ(streams ? sink->text : sink->eos().text, answer);
    EXPECT_EQ(sink->eos().reason, FinishReason::stop);
  }
}

TEST_F(ToolCalls, ACallThatIsCutLeavesNoMark) {
  const std::string says = "C " + std::string(kCall);
  serve(says);
  for (std::int32_t tokens = 4; tokens < 30; ++tokens) {
    GenerateRequest request = ask("what?");
    request.options.max_tokens = tokens;
    const auto stream = generate(request);
    request.options.stream = false;
    const auto whole = generate(request);
    EXPECT_EQ(stream->text, "C") << tokens;
    EXPECT_EQ(whole->eos().text, "C") << tokens;
    EXPECT_TRUE(stream->calls.empty()) << tokens;
    EXPECT_EQ(stream->eos().reason, FinishReason::length);
  }
}

TEST_F(ToolCalls, OnlyTheTokensOfTheContentSayHowLikelyTheyWere) {
  const std::string says = "first " + std::string(kCall) + " then";
  serve(says);
  GenerateRequest request = ask("what?");
  request.options.logprobs = 1;
  const auto sink = generate(request);
  EXPECT_EQ(sink->calls.size(), 1u);
  EXPECT_EQ(sink->text, "firstthen");
  std::string likely;
  for (const TokenLogprobs& place : sink->logprobs) likely += place.chosen.bytes;
  EXPECT_EQ(likely, sink->text);
  request.options.stream = false;
  const auto whole = generate(request);
  likely.clear();
  for (const TokenLogprobs& place : whole->eos().logprobs) likely += place.chosen.bytes;
  EXPECT_EQ(likely, "firstthen");
}

constexpr std::string_view kStrictTools =
    R"([{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object",)"
    R"("properties":{"a":{"enum":["x y"]}},"required":["a"],"additionalProperties":false}}}])";

TEST_F(ToolCalls, OfItsOwnAccordFollowTheirSchemas) {
  // The model tries to write other arguments, and another tool call after it.
  serve("I call. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 17, \"b\": [1, 2]}}\n</tool_call>");
  GenerateRequest request = ask("what?");
  request.options.max_tokens = 200;
  EXPECT_EQ(generate(request)->calls.at(0).text, R"({"a": 17, "b": [1, 2]})") << "the tool has no schema";
  request.options.chat.tools = kStrictTools;
  for (const bool streams : {true, false}) {
    request.options.stream = streams;
    const auto sink = generate(request);
    const std::vector<ReplyPart>& calls = streams ? sink->calls : sink->eos().parts;
    ASSERT_EQ(calls.size(), 1u);
    EXPECT_EQ(calls[0].name, "f");
    std::string written = calls[0].text;
    std::erase(written, ' ');  // Blanks between its parts are allowed.
    EXPECT_EQ(written, R"({"a":"xy"})") << calls[0].text;
    EXPECT_TRUE((streams ? sink->text : sink->eos().text).starts_with("I call."));
  }
}

TEST_F(ToolCalls, BehindACallTheReplyIsFreeAgain) {
  const std::string says = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":\"x y\"}}\n</tool_call>\nand [this] too";
  serve(says);
  GenerateRequest request = ask("what?");
  request.options.chat.tools = kStrictTools;
  const auto sink = generate(request);
  ASSERT_EQ(sink->calls.size(), 1u);
  EXPECT_EQ(sink->calls[0].text, R"({"a":"x y"})");
  EXPECT_EQ(sink->text, "and [this] too");
  EXPECT_EQ(sink->eos().reason, FinishReason::tool_calls);
}

TEST_F(ToolCalls, AStopStringThatHidesTheMarkDoesNotSpoilTheGrammar) {
  serve("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 17}}\n</tool_call>");
  GenerateRequest request = ask("what?");
  request.options.chat.tools = kStrictTools;
  request.options.stop = {"<tool_call>\n{\"nothing"};  // holds the text back up to there
  request.options.max_tokens = 200;
  const auto sink = generate(request);
  ASSERT_EQ(sink->calls.size(), 1u);
  EXPECT_TRUE(sink->calls[0].text.contains("x y")) << sink->calls[0].text;
}

TEST_F(ToolCalls, AStrictToolWhoseSchemaIsNoGrammarIsRefused) {
  serve(kCall);
  GenerateRequest request = ask("what?");
  request.options.chat.tools =
      R"([{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object","required":1}}}])";
  const auto refused = generate(request);
  EXPECT_EQ(refused->error().field, "tools[0].function.parameters");
}

}  // namespace
}  // namespace uma::engine
