#include "chat/reply/reply_parser.h"

#include <algorithm>
#include <format>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "base/utf8.h"
#include "jinja/json_reader.h"

namespace uma::chat {
namespace {

constexpr std::uint64_t kSeed = 7;

struct Call {
  std::string name;
  std::string arguments;
  bool operator==(const Call&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Call& call) {
  return out << call.name << call.arguments;
}

struct Reply {
  std::string reasoning;
  std::string content;
  std::vector<Call> calls;
  bool operator==(const Reply&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Reply& reply) {
  return out << "reasoning: " << reply.reasoning << "\ncontent: " << reply.content
             << "\ncalls: " << ::testing::PrintToString(reply.calls);
}

// Collects the parts of a reply like the client of a stream.
class Collector {
 public:
  void add(const ReplyPieces& pieces) {
    for (const ReplyPart& part : pieces.before) add(part);
    reply.content += pieces.content;
    for (const ReplyPart& part : pieces.after) add(part);
  }

  Reply reply;
  std::vector<std::string> ids;

 private:
  void add(const ReplyPart& part) {
    EXPECT_FALSE(part.text.empty()) << "no part is empty";
    if (part.kind == ReplyPart::Kind::reasoning) {
      reply.reasoning += part.text;
      return;
    }
    const auto index = static_cast<std::size_t>(part.call);
    if (index == reply.calls.size()) {
      EXPECT_FALSE(part.id.empty() || part.name.empty());
      reply.calls.push_back({part.name, ""});
      ids.push_back(part.id);
    } else {
      EXPECT_EQ(index + 1, reply.calls.size()) << "calls come one after the other";
      EXPECT_TRUE(part.id.empty() && part.name.empty());
    }
    reply.calls.back().arguments += part.text;
  }
};

// The reply, parsed from pieces of at most `chunk` characters.
Reply parse(const ReplyFormat& format, std::string_view text, std::size_t characters_max) {
  ReplyParser parser(format, kSeed);
  Collector collector;
  ReplyPieces pieces;
  Random random(characters_max);
  while (!text.empty()) {
    std::size_t size = 0;
    for (std::size_t left = 1 + random.next_below(characters_max); left > 0 && size < text.size(); --left) {
      do ++size;
      while (size < text.size() && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80);
    }
    pieces.clear();
    parser.push(text.substr(0, size), pieces);
    collector.add(pieces);
    text.remove_prefix(size);
  }
  pieces.clear();
  parser.finish(pieces);
  collector.add(pieces);
  EXPECT_EQ(parser.reasoning(), collector.reply.reasoning);
  std::vector<Call> calls;
  for (const ReplyPart& call : parser.calls()) calls.push_back({call.name, call.text});
  EXPECT_EQ(calls, collector.reply.calls) << "the final calls equal the streamed calls";
  return collector.reply;
}

void expect_reply(const ReplyFormat& format, std::string_view text, const Reply& wanted) {
  EXPECT_EQ(parse(format, text, text.size() + 1), wanted) << "whole: " << text;
  for (const std::size_t characters : {1, 2, 3, 7, 20}) {
    EXPECT_EQ(parse(format, text, characters), wanted) << "in pieces of " << characters << ": " << text;
  }
}

// A reply of the family, with tools of these names.
ReplyFormat calls(std::string_view family, const std::vector<std::string>& names = {"f", "get weather"}) {
  Tools tools;
  for (const std::string& name : names) tools.emplace(name, ParameterTypes());
  return {.family = family_named(family), .tools = std::make_shared<const Tools>(std::move(tools))};
}

ReplyFormat reasoning_format(bool begins_with_reasoning = false) {
  return {.thoughts = {"<think>", "</think>"}, .begins_with_reasoning = begins_with_reasoning};
}

ReplyFormat thinking_calls(std::string_view family, const std::vector<std::string>& names = {"f"}) {
  ReplyFormat format = calls(family, names);
  format.thoughts = {"<think>", "</think>"};
  return format;
}

TEST(ReplyParser, TextWithoutMarksIsContentAsItIs) {
  for (const Family& family : families()) {
    for (const std::string_view text : {"", " ", "\n a\n\nb \n", "a < b, [1, 2] and <too", "größe €", "x {\"name\": \"f\"}"}) {
      expect_reply(calls(family.name), text, {.reasoning = "", .content = std::string(text), .calls = {}});
    }
  }
  expect_reply(reasoning_format(), " \n a\n", {.reasoning = "", .content = " \n a\n", .calls = {}});
  expect_reply({.begins_with_blanks = true}, "  a b ", {.reasoning = "", .content = "a b ", .calls = {}});
  expect_reply(reasoning_format(), "\n<thin", {.reasoning = "", .content = "\n<thin", .calls = {}});
}

TEST(ReplyParser, SeparatesReasoning) {
  expect_reply(reasoning_format(), "<think>\nhm, 1 < 2\n</think>\n\nyes\n",
               {.reasoning = "hm, 1 < 2", .content = "yes\n", .calls = {}});
  expect_reply(reasoning_format(), " \n<think>a\n\nb</think>c", {.reasoning = "a\n\nb", .content = "c", .calls = {}});
  expect_reply(reasoning_format(true), "a</think>b", {.reasoning = "a", .content = "b", .calls = {}});
  expect_reply(reasoning_format(), "<think>\n\n</think>\n\nb", {.reasoning = "", .content = "b", .calls = {}});
}

TEST(ReplyParser, ReasoningWithoutAnEndIsReasoning) {
  expect_reply(reasoning_format(), "<think>\nwhy </thi", {.reasoning = "why </thi", .content = "", .calls = {}});
  expect_reply(reasoning_format(true), "", {.reasoning = "", .content = "", .calls = {}});
}

TEST(ReplyParser, ReasoningIsOnlyAtTheBeginningOfAReply) {
  expect_reply(reasoning_format(), "say <think> and </think>",
               {.reasoning = "", .content = "say <think> and </think>", .calls = {}});
}

TEST(ReplyParser, TaggedCalls) {
  const ReplyFormat format = calls("hermes");
  expect_reply(format, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": \"}\"}]}}\n</tool_call>",
               {.reasoning = "", .content = "", .calls = {{"f", R"({"a": [1, {"b": "}"}]})"}}});
  expect_reply(format,
               "I look.\n<tool_call>{\"arguments\": {\"x\": \"ü\\n\"}, \"name\": \"g\"}</tool_call>\n"
               "<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n</tool_call>",
               {.reasoning = "", .content = "I look.", .calls = {{"g", R"({"x": "ü\n"})"}, {"f", "{}"}}});
  expect_reply(format, R"(<tool_call>{"name": "f"}</tool_call> done)",
               {.reasoning = "", .content = "done", .calls = {{"f", "{}"}}});
  expect_reply(format, R"(<tool_call>{"id": 3, "more": [{"name": 1}], "name": "f", "parameters": {"name": "x"}})",
               {.reasoning = "", .content = "", .calls = {{"f", R"({"name": "x"})"}}});
}

TEST(ReplyParser, ReasoningBeforeACall) {
  const ReplyFormat format = thinking_calls("hermes");
  expect_reply(format, "<think>\nI need f.\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
               {.reasoning = "I need f.", .content = "", .calls = {{"f", "{}"}}});
}

TEST(ReplyParser, LlamasCalls) {
  const ReplyFormat format = calls("llama3");
  expect_reply(format, R"({"name": "f", "parameters": {"a": "1"}})",
               {.reasoning = "", .content = "", .calls = {{"f", R"({"a": "1"})"}}});
  expect_reply(format, R"(<|python_tag|>{"type": "function", "name": "get weather", "parameters": {"a": 1}}; {"name": "f"})",
               {.reasoning = "", .content = "", .calls = {{"get weather", R"({"a": 1})"}, {"f", "{}"}}});
  expect_reply(format, "<|python_tag|>print(1)", {.reasoning = "", .content = "<|python_tag|>print(1)", .calls = {}});
}

TEST(ReplyParser, JsonThatIsNoCallOfLlamaIsContent) {
  const ReplyFormat format = calls("llama3");
  for (const std::string_view text :
       {R"({"name": "Ada", "parameters": {"born": 1815}})", R"({"a": 1})", " {}\n", R"({"name": "Ada"} was born)", "{'name'"}) {
    expect_reply(format, text, {.reasoning = "", .content = std::string(text), .calls = {}});
  }
}

TEST(ReplyParser, MistralsCalls) {
  const ReplyFormat format = calls("mistral");
  expect_reply(format,
               R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "123456789"}, {"name": "g", "arguments": {}}])",
               {.reasoning = "", .content = "", .calls = {{"f", R"({"a": 1})"}, {"g", "{}"}}});
  expect_reply(format, R"(Well.[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{"b": {}}[TOOL_CALLS]h{})",
               {.reasoning = "", .content = "Well.", .calls = {{"f", R"({"a": 1})"}, {"g", R"({"b": {}})"}, {"h", "{}"}}});
  expect_reply(format, "[TOOL_CALLS] nothing of it", {.reasoning = "", .content = "[TOOL_CALLS] nothing of it", .calls = {}});
}

TEST(ReplyParser, DeepSeeksCalls) {
  const ReplyFormat format = calls("deepseek");
  expect_reply(
      format,
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜>\n"
      "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
      {.reasoning = "", .content = "", .calls = {{"f", R"({"a": 1})"}, {"g", "{}"}}});
  expect_reply(format,
               "Look: <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"
               "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
               {.reasoning = "", .content = "Look:", .calls = {{"f", R"({"a": 1})"}, {"g", "{}"}}});
}

TEST(ReplyParser, WhatIsMalformedBeforeItsArgumentsIsContent) {
  for (const std::string_view body :
       {"", "{", "x", "{\"name\": \"f\"", "{\"name\": f}", "{\"name\": 1, \"arguments\": {}}", "{\"arguments\": {}}",
        "{\"name\": \"\", \"arguments\": {}}", "{\"name\": \"f\", \"arguments\": [1]}",
        "{\"name\": \"f\", \"arguments\": \"{\"}", "{\"arguments\": {\"a\": 01}, \"name\": \"f\"}",
        "{\"name\": \"a\", \"name\": \"b\", \"arguments\": {}}", "[]", "{\"name\": \"f\", }"}) {
    const std::string text = std::format("so <tool_call>{} </tool_call>", body);
    expect_reply(calls("hermes"), text, {.reasoning = "", .content = text, .calls = {}});
  }
}

TEST(ReplyParser, AMarkInsteadOfJsonBeginsAnew) {
  expect_reply(calls("hermes"), R"(<tool_call><tool_call>{"name": "f"}</tool_call>)",
               {.reasoning = "", .content = "<tool_call>", .calls = {{"f", "{}"}}});
}

TEST(ReplyParser, ArgumentsThatGoWrongEndTheCallThere) {
  expect_reply(calls("hermes"), R"(<tool_call>{"name": "f", "arguments": {"a": nope}}</tool_call>)",
               {.reasoning = "", .content = "}}</tool_call>", .calls = {{"f", R"({"a": nope)"}}});
  expect_reply(calls("hermes"), R"(<tool_call>{"name": "f", "arguments": {"a": "b)",
               {.reasoning = "", .content = "", .calls = {{"f", R"({"a": "b)"}}});
}

TEST(ReplyParser, BareControlCharactersInArgumentsAreEscaped) {
  expect_reply(calls("hermes"), "<tool_call>{\"name\": \"f\", \"arguments\": {\n\"a\": \"1\n\t2\"}}</tool_call>",
               {.reasoning = "", .content = "", .calls = {{"f", "{\n\"a\": \"1\\n\\t2\"}"}}});
}

TEST(ReplyParser, EmitsArgumentsAsTheyCome) {
  ReplyParser parser(calls("hermes"), kSeed);
  ReplyPieces pieces;
  parser.push("<tool_call>{\"name\": \"f\", \"arguments\": ", pieces);
  EXPECT_TRUE(pieces.before.empty()) << "its arguments have not begun";
  parser.push("{\"a\"", pieces);
  ASSERT_EQ(pieces.before.size(), 1u);
  EXPECT_EQ(pieces.before[0].text, "{\"a\"");
  EXPECT_EQ(pieces.before[0].id.size(), 9u);
  pieces.clear();
  parser.push(": 1}", pieces);
  ASSERT_EQ(pieces.before.size(), 1u);
  EXPECT_EQ(pieces.before[0], (ReplyPart{.kind = ReplyPart::Kind::tool_call, .text = ": 1}", .call = 0}));
}

TEST(ReplyParser, ContentIsHeldBackOnlyWhereItCouldBeAMark) {
  ReplyParser parser(calls("hermes"), kSeed);
  ReplyPieces pieces;
  parser.push("one <tool", pieces);
  EXPECT_EQ(pieces.content, "one");
  parser.push("box> two", pieces);
  EXPECT_EQ(pieces.content, "one <toolbox> two");
}

TEST(ReplyParser, CallsHaveIdsOfTheirOwn) {
  ReplyParser parser(calls("mistral"), kSeed);
  ReplyPieces pieces;
  parser.push("[TOOL_CALLS][{\"name\": \"f\"}, {\"name\": \"f\"}]", pieces);
  ASSERT_EQ(parser.calls().size(), 2u);
  EXPECT_NE(parser.calls()[0].id, parser.calls()[1].id);
}

TEST(ReplyParser, WithoutParallelCallsTheFirstEndsTheReply) {
  ReplyFormat format = calls("hermes");
  format.has_parallel_calls = false;
  ReplyParser parser(format, kSeed);
  ReplyPieces pieces;
  parser.push("<tool_call>{\"name\": \"f\", \"arguments\": {}", pieces);
  EXPECT_FALSE(parser.has_ended());
  parser.push("}\n</tool", pieces);
  EXPECT_FALSE(parser.has_ended()) << "the template writes the closing mark, too";
  parser.push("_call>", pieces);
  EXPECT_TRUE(parser.has_ended());
}

TEST(ReplyParser, WithoutParallelCallsNothingFollowsTheFirst) {
  for (const std::string_view text : {"\n{\"name\": \"f\", \"arguments\": {}}", " And now?", "<tool_call>"}) {
    ReplyFormat format = calls("hermes");
    format.has_parallel_calls = false;
    ReplyParser parser(format, kSeed);
    ReplyPieces pieces;
    parser.push("<tool_call>{\"name\": \"f\", \"arguments\": {}}", pieces);
    parser.push(text, pieces);
    EXPECT_TRUE(parser.has_ended()) << text;
    parser.finish(pieces);
    EXPECT_EQ(parser.calls().size(), 1u) << text;
    EXPECT_EQ(pieces.content, "") << text;
  }
}

TEST(ReplyParser, TheMessageOfAReplyHasItsFields) {
  const ReplyFormat format = thinking_calls("hermes");
  ReplyParser parser(format, kSeed);
  ReplyPieces pieces;
  EXPECT_EQ(parser.message_extra(), "");
  parser.push("<think>a \"b\"</think><tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>", pieces);
  EXPECT_EQ(parser.message_extra(),
            std::format(R"({{"reasoning_content":"a \"b\"","tool_calls":[{{"id":"{}","type":"function","function":)"
                        R"({{"name":"f","arguments":"{{\"x\": 1}}"}}}}]}})",
                        parser.calls()[0].id));
  EXPECT_TRUE(jinja::read_json(parser.message_extra(), 0));
}

TEST(ReplyParser, EndlessOutputIsBounded) {
  const std::string many(10'000, 'x');
  for (const std::string& text : {"[TOOL_CALLS]" + std::string(2000, ' ') + "{\"name\": \"f\"}", "[TOOL_CALLS]" + many,
                                  "[TOOL_CALLS]f[CALL_ID]" + many, "[TOOL_CALLS]" + std::string(10'000, ' ')}) {
    expect_reply(calls("mistral"), text, {.reasoning = "", .content = text, .calls = {}});
  }
  std::string deep = "<tool_call>{\"name\": \"f\", \"x\": " + std::string(1000, '[');
  expect_reply(calls("hermes"), deep, {.reasoning = "", .content = deep, .calls = {}});
  std::string calls_text;
  for (int i = 0; i < 200; ++i) calls_text += "<tool_call>{\"name\": \"f\"}</tool_call>";
  EXPECT_EQ(parse(calls("hermes"), calls_text, 50).calls.size(), 128u);
}

// Whitespace that is held back, which would take minutes if each character read it again.
TEST(ReplyParser, MuchWhitespaceIsReadOnce) {
  const std::string blanks = "\n" + std::string(300'000, ' ');
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)";
  const std::string qwen = "<tool_call>\n<function=f>\n<parameter=a>\n";
  const std::string glm = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>";
  struct Case {
    ReplyFormat format;
    std::string before;
    std::string after;
  };
  for (const auto& [format, before, after] :
       std::vector<Case>{{calls("hermes"), "a", "b"},
                         {calls("hermes"), "", call},
                         {calls("hermes"), call, "b"},
                         {calls("hermes"), call, call},
                         {calls("hermes"), "a", "<tool"},
                         {calls("llama3"), R"({"name": "f", "parameters": {}})", R"(; {"name": "f"})"},
                         {calls("llama3"), R"({"name": "f", "parameters": {}};)", R"({"name": "f"})"},
                         {thinking_calls("hermes"), "<think>a", "b</think>c"},
                         {thinking_calls("hermes"), "<think>a", "</think>c"},
                         {thinking_calls("hermes"), "<think>a</think>", "c"},
                         {thinking_calls("hermes"), "<think>a", call},
                         {calls("qwen3-coder"), qwen + "x", "y\n</parameter>\n</function>\n</tool_call>"},
                         {calls("qwen3-coder"), qwen, "y\n</parameter>\n</function>\n</tool_call>"},
                         {calls("qwen3-coder"), qwen + "x", "</function>\n</tool_call>"},
                         {calls("qwen3-coder"), qwen + "x\n</parameter>", "</function>\n</tool_call>"},
                         {calls("glm"), glm + "x", "y</arg_value>\n</tool_call>"},
                         {calls("glm"), glm, "y</arg_value>\n</tool_call>"},
                         {calls("glm"), glm + "x", "</arg_value>\n</tool_call>"}}) {
    const std::string text = before + blanks + after;
    const Reply whole = parse(format, text, text.size() + 1);
    EXPECT_TRUE(parse(format, text, 1) == whole) << before << " ... " << after;
  }
}

TEST(ReplyParser, LongArgumentsAreEmittedOnce) {
  const std::string value(500'000, 'x');
  const std::string text = R"(<tool_call>{"name": "f", "arguments": {"a": ")" + value + R"("}}</tool_call>)";
  const Reply reply = parse(calls("hermes"), text, 1);
  ASSERT_EQ(reply.calls.size(), 1u);
  EXPECT_EQ(reply.calls[0].arguments.size(), value.size() + 9);
}

// No text is lost: everything outside marks and calls appears in the result.
TEST(ReplyParser, AnyTextComesOutTheSameHoweverItIsCut) {
  const std::vector<std::string> words{"<tool_call>",
                                       "</tool_call>",
                                       "<think>",
                                       "</think>",
                                       "[TOOL_CALLS]",
                                       "[ARGS]",
                                       "{",
                                       "}",
                                       "[",
                                       "]",
                                       "\"name\"",
                                       ": ",
                                       "\"f\"",
                                       ", ",
                                       "\"arguments\"",
                                       " ",
                                       "\n",
                                       "a",
                                       "\\",
                                       "\"",
                                       "<",
                                       "1",
                                       "<|python_tag|>",
                                       "<response>",
                                       "</response>",
                                       "<function=f>\n",
                                       "<parameter=a>",
                                       "</parameter>",
                                       "</function>",
                                       "<|tool_call>call:f",
                                       "<|\"|>",
                                       "'",
                                       "(",
                                       ")",
                                       "f(a=",
                                       "<｜tool▁calls▁begin｜>",
                                       "<｜tool▁call▁begin｜>",
                                       "<｜tool▁sep｜>",
                                       "<｜tool▁call▁end｜>",
                                       "{\"name\": \"f\", \"arguments\": {",
                                       "```json\n"};
  Random random(11);
  for (int round = 0; round < 3000; ++round) {
    const Family& family = families()[random.next_below(families().size())];
    ReplyFormat format = calls(family.name, {"f"});
    if (random.next_below(3) > 0) format.thoughts = thoughts_of("</think>", &family);
    format.begins_with_reasoning = !format.thoughts.open.empty() && random.next_below(4) == 0;
    format.keeps_thoughts = random.next_below(4) == 0;
    std::string text;
    for (std::uint64_t left = random.next_below(20); left > 0; --left) text += words[random.next_below(words.size())];
    const Reply whole = parse(format, text, text.size() + 1);
    ASSERT_EQ(parse(format, text, 1), whole) << text;
    ASSERT_EQ(parse(format, text, 5), whole) << text;
  }
}

TEST(ReadJson, TakesWhatIsJson) {
  for (const std::string_view text : {"{}", " [1, -0.5e3, \"a\\u00e9\\ud83d\\ude00\", true, null] ", "\"\"", "0",
                                      "{\"a\": {\"b\": [[]]}}", "123456789012345678901234567890"}) {
    EXPECT_TRUE(jinja::read_json(text, 0)) << text;
  }
  EXPECT_EQ(jinja::read_json("\"\\u00e9\\ud83d\\ude00\\n\"", 0)->as_text()->bytes(), "é😀\n");
}

TEST(ReadJson, RefusesWhatIsNot) {
  for (const std::string_view text : {"", "{", "01", "1.", "- 1", "[1,]", "{\"a\" 1}", "{a: 1}", "\"\\x\"", "\"\\ud800\"",
                                      "\"\\u0000\"", "\"a\nb\"", "true false", "tru", "nan", "1e", "\xff"}) {
    EXPECT_FALSE(jinja::read_json(text, 0)) << text;
  }
  EXPECT_TRUE(jinja::read_json(std::string(32, '[') + std::string(32, ']'), 0));
  EXPECT_FALSE(jinja::read_json(std::string(100'000, '['), 0));
}

TEST(ReadJson, ReportsTheSource) {
  const auto value = jinja::read_json(R"({"a": "b"})", 3);
  EXPECT_EQ(value->as_dict()->find("a")->as_text()->inputs().front().source, 3);
  EXPECT_EQ(value->as_dict()->entries.front().first->inputs().front().source, 3);
}

// The content_places of `text` for one way of dividing it into pieces.
std::string at_places(const ReplyFormat& format, std::string_view text, std::size_t step, std::string& content) {
  ReplyParser parser(format, kSeed);
  ReplyPieces pieces;
  std::string named;
  const auto take = [&] {
    for (const auto& [begin, end] : pieces.content_places) named += text.substr(begin, end - begin);
    content += pieces.content;
  };
  for (std::size_t at = 0; at < text.size(); at += step) {
    pieces.clear();
    parser.push(text.substr(at, step), pieces);
    take();
  }
  pieces.clear();
  parser.finish(pieces);
  take();
  return named;
}

TEST(ReplyParser, ReportsTheRangesOfItsContent) {
  const ReplyFormat format = thinking_calls("hermes");
  for (const std::string_view text :
       {"<think>hm</think>\n\nfirst <tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\nthen",
        "a <tool_call> no call</tool_call>", "x<tool_call>{\"name\": 7}</tool_call>y", "<tool_call>{\"name\": \"f\"", "a <tool",
        "  plain", "<thi"}) {
    for (std::size_t step = 1; step <= text.size(); ++step) {
      std::string content;
      const std::string named = at_places(format, text, step, content);
      EXPECT_EQ(named, content) << text << " in pieces of " << step;
    }
  }
}

// The result of begun_call() after each character.
std::vector<std::string> begun_calls(const ReplyFormat& format, std::string_view text) {
  ReplyParser parser(format, kSeed);
  ReplyPieces pieces;
  std::vector<std::string> begun;
  for (std::size_t i = 0; i < text.size(); ++i) {
    parser.push(text.substr(i, 1), pieces);
    if (const auto call = parser.begun_call()) begun.push_back(*call);
  }
  return begun;
}

TEST(ReplyParser, ReportsTheTextOfACallFromItsMark) {
  const ReplyFormat hermes = calls("hermes");
  const std::vector<std::string> begun =
      begun_calls(hermes, "see <tool_call>\n{\"name\": \"f\", \"arguments\": {}}</tool_call> then");
  ASSERT_FALSE(begun.empty());
  EXPECT_EQ(begun.front(), "<tool_call>") << "the mark is complete";
  EXPECT_EQ(without_blanks(begun[2]), "<tool_call>\n{");
  EXPECT_EQ(without_blanks(begun.back()), "<tool_call>\n{\"name\": \"f\", \"arguments\":")
      << "the next character emits the call";
  EXPECT_TRUE(begun_calls(hermes, "see <tool").empty());
  EXPECT_TRUE(begun_calls({}, "<tool_call>{").empty());
}

TEST(ReplyParser, APreambleIsNoBegunCall) {
  const ReplyFormat harmony = calls("gpt-oss");
  EXPECT_TRUE(begun_calls(harmony, "<|channel|>commentary<|message|>I look.<|end|>").empty());
  EXPECT_EQ(begun_calls(harmony, "<|channel|>commentary to=functions.f").front(), "<|channel|>commentary to=functions.");
}

TEST(ReplyParser, ACallWithoutAMarkHasBegunWithTheNameOfATool) {
  const ReplyFormat format = calls("llama3", {"f", "g"});
  const std::vector<std::string> begun =
      begun_calls(format, R"({"name": "f", "parameters": {}}; {"name": "g", "parameters": {}})");
  ASSERT_FALSE(begun.empty());
  EXPECT_EQ(begun.front(), R"({"name": "f")");
  EXPECT_TRUE(begun_calls(format, R"({"name": "Ada", "age": 36})").empty());
}

// --- replies that a client has begun

// What the parser gives out for `text` behind a begun reply, whole and byte by byte.
Reply continued(ReplyFormat format, const std::string& begun, const std::string& text) {
  format.begun = begun;
  std::vector<Reply> replies;
  for (const std::size_t length : {text.size(), std::size_t{1}}) {
    ReplyParser parser(format, kSeed);
    Collector collector;
    ReplyPieces pieces;
    for (std::size_t at = 0; at < text.size(); at += length) {
      pieces.clear();
      parser.push(std::string_view(text).substr(at, length), pieces);
      for (const auto& place : pieces.content_places) EXPECT_LE(place.end, text.size());
      collector.add(pieces);
    }
    pieces.clear();
    parser.finish(pieces);
    collector.add(pieces);
    replies.push_back(collector.reply);
  }
  EXPECT_EQ(replies.front(), replies.back()) << begun << text;
  return replies.front();
}

TEST(BegunReply, OnlyTheRestIsGivenOut) {
  ReplyFormat format;
  format.thoughts = {.open = "<think>", .close = "</think>"};
  EXPECT_EQ(continued(format, "The answer", " is 7."), (Reply{"", " is 7.", {}}));
  EXPECT_EQ(continued(format, "a ", "b"), (Reply{"", "b", {}})) << "its blanks are its own";
  EXPECT_EQ(continued(format, "<", "th> is no mark"), (Reply{"", "th> is no mark", {}}));
  EXPECT_EQ(continued(format, "<think>Hm.</think>\n\nYes", ", 7"), (Reply{"", ", 7", {}}));
  EXPECT_EQ(continued(format, "<think>Hm", ", no.</think>7"), (Reply{", no.", "7", {}}));
  format.begins_with_reasoning = true;
  EXPECT_EQ(continued(format, "Hm", ", no.</think>7"), (Reply{", no.", "7", {}}));
}

TEST(BegunReply, CallsBeginBehindIt) {
  ReplyFormat format;
  format.family = &general_family();
  format.tools = std::make_shared<const Tools>(Tools{{"f", {}}});
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  EXPECT_EQ(continued(format, "I look.", "\n" + call), (Reply{"", "", {{"f", "{}"}}}));
  EXPECT_EQ(continued(format, "{", "\"a\": 1}"), (Reply{"", "\"a\": 1}", {}}));
  EXPECT_TRUE(continued(format, call.substr(0, 14), call.substr(14)).calls.empty()) << "the client's text is no call";
}

TEST(ReplyParser, NamesOfToolsMayHaveBlanks) {
  ReplyFormat format;
  format.family = &general_family();
  format.tools = std::make_shared<const Tools>(Tools{{"get weather", {}}, {"天气", {}}});
  for (const std::string name : {"get weather", "天气"}) {
    const std::string call = "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": {}}\n</tool_call>";
    EXPECT_EQ(continued(format, "", call), (Reply{"", "", {{name, "{}"}}})) << name;
  }
}

}  // namespace
}  // namespace uma::chat
