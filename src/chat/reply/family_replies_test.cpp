// Replies of families whose calls have no mark of their own or are typed, replies that a limit cuts, and replies by chance, in
// pieces of every size.
#include <cstddef>
#include <format>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "chat/calls/call_pattern.h"
#include "chat/calls/nested_elements.h"
#include "chat/calls/tool_format.h"
#include "chat/family.h"
#include "chat/family_test_support.h"
#include "chat/reply/reply_parser.h"

namespace uma::chat {
namespace {

// --- families whose calls have no mark, or one that is also something else

TEST(FamilyReplies, CommandRPlus) {
  const auto action = [](const std::string& calls) { return "Action:\n```json\n[\n    " + calls + "\n]\n```"; };
  const std::string f = R"({"tool_name": "f", "parameters": {"a": 1}})";
  const std::string none = R"({"tool_name": "directly_answer", "parameters": {}})";
  expect_parts("command-r-plus", action(f), {"", "", {R"(f{"a": 1})"}});
  expect_parts("command-r-plus", "C\n" + action(f + ",\n    " + R"({"tool_name": "g", "parameters": {}})"),
               {"", "C", {R"(f{"a": 1})", "g{}"}});
  expect_parts("command-r-plus", action(none), {"", "", {}});
  expect_parts("command-r-plus", action(R"({"tool_name": "directly-answer", "parameters": {"why": "[{}]"}})") + "\nC",
               {"", "C", {}});
  expect_parts("command-r-plus", action(none + ",\n    " + f), {"", "", {R"(f{"a": 1})"}});
  for (const std::string_view text : {"Action: wait.", "Action:\n```json\n{\"a\": 1}\n```", "Action:\n```json\n[1, 2]\n```",
                                      "Action:\n```json\n[\n    {\"tool_name\": 1}\n]\n```"})
    expect_parts("command-r-plus", text, {"", std::string(text), {}});
  expect_parts("command-r-plus", "Action:\n```json\n[{\"tool_name\": \"directly_answer\", \"parameters\": {\"a\": ]}",
               {"", "Action:\n```json\n[{\"tool_name\": \"directly_answer\", \"parameters\": {\"a\": ]}", {}});
}

TEST(FamilyReplies, ACallThatStandsForNoneMayBeATool) {
  ReplyFormat format = family_format("command-r-plus", false);
  format.tools = std::make_shared<const Tools>(Tools{{"directly_answer", {}}});
  expect_parts(format, "Action:\n```json\n[{\"tool_name\": \"directly_answer\", \"parameters\": {}}]\n```",
               {"", "", {"directly_answer{}"}});
}

TEST(FamilyReplies, Functionary32) {
  expect_parts("functionary-3.2", "f\n{\"a\": 1}", {"", "", {R"(f{"a": 1})"}});
  expect_parts("functionary-3.2", "f\n{\"a\": 1}>>>g\n{}", {"", "", {R"(f{"a": 1})", "g{}"}});
  expect_parts("functionary-3.2", "all\nC", {"", "C", {}});
  expect_parts("functionary-3.2", "all\nC >>> D>>>f\n{\"a\": 1}", {"", "C >>> D", {R"(f{"a": 1})"}});
  expect_parts("functionary-3.2", "g\n{}>>>all\nC", {"", "C", {"g{}"}});
  expect_parts("functionary-3.2", ">>>get_weather\n{\"city\": \"K\"}", {"", "", {R"(get_weather{"city": "K"})"}});
  // What has another recipient, or none, is content.
  for (const std::string_view text :
       {"allow it\n", "f is\n{}", "unknown\n{\"a\": 1}", "get\n{}", "f\n[1]", "f", "so f\n{}", "all"})
    expect_parts("functionary-3.2", text, {"", std::string(text), {}});
  expect_parts("functionary-3.2", "all\nf\n{}", {"", "f\n{}", {}});
  expect_parts("functionary-3.2", "all\nall\nread", {"", "all\nread", {}});
  expect_parts("functionary-3.2", "all\n", {"", "", {}});
  expect_parts("functionary-3.2", "g\n{\"x\": nope}", {"", "}", {R"(g{"x": nope)"}});
}

TEST(FamilyReplies, Functionary32WritesPythonAsItIs) {
  ReplyFormat format = family_format("functionary-3.2", false);
  format.tools = std::make_shared<const Tools>(tools_of(
      R"([{"type": "function", "function": {"name": "python", "parameters": {"type": "object", "properties": {"source": {"type":
         "string"}}}}}, {"type": "function", "function": {"name": "f"}}])"));
  expect_parts(format, "python\nprint(\"a\")\n", {"", "", {R"(python{"source": "print(\"a\")\n"})"}});
  expect_parts(format, "f\n{}>>>python\nx = [1]", {"", "", {"f{}", R"(python{"source": "x = [1]"})"}});
  expect_parts(format, "python\n{\"source\": \"1\"}", {"", "", {R"(python{"source": "1"})"}});
  expect_parts(format, "python is a snake\n", {"", "python is a snake\n", {}});
  expect_parts(format, "python\n{k: v for k, v in x}", {"", "", {R"(python{"source": "{k: v for k, v in x}"})"}});
  expect_parts(format, "python\n{\n  1}", {"", "", {R"(python{"source": "{\n  1}"})"}});
  expect_parts(format, "python\n{ }", {"", "", {"python{ }"}});
  expect_parts("functionary-3.2", "python\nx", {"", "python\nx", {}});
}

TEST(FamilyReplies, GigaChat3) {
  const std::string call = "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}";
  expect_parts("gigachat-3", call, {"", "", {R"(f{"a": 1})"}});
  expect_parts("gigachat-3", "C" + call + "<|message_sep|>\n\n", {"", "C", {R"(f{"a": 1})"}});
  expect_parts("gigachat-3", call.substr(call.find("function")), {"", "", {R"(f{"a": 1})"}});
  expect_parts("gigachat-3", "C<|message_sep|>", {"", "C", {}});
  expect_parts("gigachat-3", "C\n<|message_sep|>\n\n", {"", "C", {}});
  expect_parts("gigachat-3", "a function call\n{}", {"", "a function call\n{}", {}});
  expect_parts("gigachat-3", "C<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": 1}",
               {"", "C<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": 1}", {}});
}

TEST(FamilyReplies, KimiK3) {
  const auto part = [](const std::string& name, const std::string& text) {
    return "<|open|>" + name + "<|sep|>" + text + "<|close|>" + name.substr(0, name.find(' ')) + "<|sep|>";
  };
  const auto call = [&](const std::string& name, int index, const std::string& arguments) {
    return part(std::format("call tool=\"{}\" index=\"{}\"", name, index), arguments);
  };
  const auto argument = [&](const std::string& key, const std::string& type, const std::string& value) {
    return part(std::format("argument key=\"{}\" type=\"{}\"", key, type), value);
  };
  const std::string end = "<|close|>message<|sep|>";
  const std::string think = part("think", "R");
  expect_parts("kimi-k3", think + part("response", "C") + end, {"R", "C", {}});
  expect_parts(
      "kimi-k3",
      think + part("response", "C") +
          part("tools", call("f", 1, argument("a", "number", "1") + argument("s", "string", "1\n")) + call("g", 2, "")) + end,
      {"R", "C", {R"(f{"a": 1, "s": "1\n"})", "g{}"}});
  // The attribute says the type, whatever the schema.
  expect_parts("kimi-k3",
               part("tools", call("g", 1,
                                  argument("o", "object", R"({"k": [1]})") + argument("n", "null", "null") +
                                      argument("b", "boolean", "true") + argument("l", "array", "[]") +
                                      argument("s", "string", "null"))),
               {"", "", {R"(g{"o": {"k": [1]}, "n": null, "b": true, "l": [], "s": "null"})"}});
  // Without content, the response is empty; the prompt may have begun the thoughts, or the response.
  expect_parts(
      "kimi-k3",
      "R<|close|>think<|sep|>" + part("response", "") + part("tools", call("f", 1, argument("a", "number", "1"))) + end,
      {"R", "", {R"(f{"a": 1})"}}, true);
  expect_parts("kimi-k3", "<|close|>response<|sep|>" + part("tools", call("g", 1, "")) + end, {"", "", {"g{}"}});
  expect_parts("kimi-k3", "C<|close|>response<|sep|>" + end, {"", "C", {}});
  expect_parts("kimi-k3", part("response", "") + end, {"", "", {}});
  expect_parts("kimi-k3", "no parts", {"", "no parts", {}});
  const std::string wrong = "<|open|>tools<|sep|><|open|>call index=\"1\"<|sep|>";
  expect_parts("kimi-k3", wrong, {"", wrong, {}});
  // A value without its end ends before the next one.
  expect_parts("kimi-k3",
               part("tools", "<|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"s\" type=\"string\"<|sep|>x" +
                                 argument("a", "number", "2") + "<|close|>call<|sep|>"),
               {"", "", {R"(f{"s": "x", "a": 2})"}});
}

TEST(FamilyReplies, MiroThinker) {
  const auto call = [](const std::string& name, const std::string& arguments) {
    return "\n<use_mcp_tool>\n<server_name>s</server_name>\n<tool_name>" + name + "</tool_name>\n<arguments>\n" + arguments +
           "\n</arguments>\n</use_mcp_tool>";
  };
  expect_parts("mirothinker", call("f", R"({"a": 1})"), {"", "", {R"(f{"a": 1})"}});
  expect_parts("mirothinker", "<think>\nR\n</think>\n\nC\n" + call("f", R"({"a": 1})") + call("g", "{}"),
               {"R", "C", {R"(f{"a": 1})", "g{}"}});
  expect_parts("mirothinker", call("g", "{}") + "\nC", {"", "C", {"g{}"}});
  for (const std::string& text :
       {std::string("<use_mcp_tool>\n<tool_name>f</tool_name>"), call("f", "[1]").substr(1),
        std::string("<use_mcp_tool>\n<server_name>a\nb</server_name>\n<tool_name>f</tool_name>\n<arguments>\n{}"),
        "<use_mcp_tool>\n<server_name>" + std::string(80, 's') + "</server_name>\n<tool_name>f</tool_name>\n<arguments>\n{}"})
    expect_parts("mirothinker", text, {"", text, {}});
}

TEST(FamilyReplies, Xlam2) {
  const std::string f = R"({"name": "f", "arguments": {"a": 1}})";
  expect_parts("xlam-2", "[" + f + "]", {"", "", {R"(f{"a": 1})"}});
  expect_parts("xlam-2", "[" + f + R"(, {"name": "g", "arguments": {}}])", {"", "", {R"(f{"a": 1})", "g{}"}});
  expect_parts("xlam-2", "```json\n[" + f + "]\n```", {"", "", {R"(f{"a": 1})"}});
  expect_parts("xlam-2", "<think>R</think>\n[" + f + "]", {"R", "", {R"(f{"a": 1})"}});
  for (const std::string& text : {std::string("[1, 2]"), std::string(R"([{"name": "unknown", "arguments": {}}])"),
                                  std::string(R"([{"a": {"name": "f"}}])"), "C [" + f + "]", std::string("```json\n{}\n```"),
                                  std::string("[{\"name\": \"f\""), std::string(R"([{"name": "f", "description": "d"}])")})
    expect_parts("xlam-2", text, {"", text, {}});
}

// Whatever a limit cuts, what was emitted stays the begin of the call, and no mark becomes content.
TEST(FamilyReplies, ALimitCutsACallAnywhere) {
  const std::vector<std::pair<std::string_view, std::string_view>> replies{
      {"command-r-plus", "Action:\n```json\n[\n    {\"tool_name\": \"f\", \"parameters\": {\"s\": \"x\"}}\n]\n```"},
      {"functionary-3.2", "f\n{\"s\": \"x\"}"},
      {"gigachat-3", "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"f\", \"arguments\": {\"s\": \"x\"}}"},
      {"kimi-k3",
       "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"s\" type=\"string\"<|sep|>x"
       "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>"},
      {"mirothinker",
       "<use_mcp_tool>\n<server_name>tools</server_name>\n<tool_name>f</tool_name>\n<arguments>\n{\"s\": \"x\"}\n"
       "</arguments>\n</use_mcp_tool>"},
      {"xlam-2", "[{\"name\": \"f\", \"arguments\": {\"s\": \"x\"}}]"}};
  for (const auto& [family, reply] : replies) {
    for (std::size_t size = 0; size <= reply.size(); ++size) {
      ReplyParser parser(family_format(family, false), 1);
      ReplyPieces pieces;
      parser.push(reply.substr(0, size), pieces);
      const bool is_emitted = !parser.calls().empty();
      parser.finish(pieces, true);
      ASSERT_EQ(parser.calls().size(), is_emitted ? 1u : 0u) << family << ", " << size;
      if (is_emitted) {
        EXPECT_EQ(pieces.content, "") << family << ", " << size;
        EXPECT_TRUE(std::string_view(R"({"s": "x"})").starts_with(parser.calls().front().text)) << family << ", " << size;
      }
    }
  }
}

TEST(FamilyReplies, TheIdBehindTheArgumentsOfAForcedCallCounts) {
  ReplyFormat format = family_format("mistral-3", false);
  EXPECT_TRUE(has_late_id(*format.family));
  const std::string reply = R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "123456789"}])";
  expect_parts(format, reply, {"", "", {R"(f{"a": 1})"}});
  format.waits_for_ids = true;
  expect_parts(format, reply, {"", "", {R"(f#123456789{"a": 1})"}});
  expect_parts(format, R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "1"}])", {"", "", {R"(f{"a": 1})"}});
  // A stop string in the arguments leaves what has come.
  expect_parts(format, R"([TOOL_CALLS] [{"name": "f", "arguments": {"s": "x)", {"", "", {R"(f{"s": "x)"}});
  // So does a limit.
  ReplyParser parser(format, 1);
  ReplyPieces pieces;
  parser.push(R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": 1)", pieces);
  parser.finish(pieces, true);
  EXPECT_EQ(pieces.content, "");
  EXPECT_EQ(parser.calls().at(0).text, R"({"a": 1)");
}

// --- elements within elements

TEST(FamilyReplies, MiniMax3TypesTheElementsOfElementsByTheirSchemas) {
  ReplyFormat format = family_format("minimax-m3", false);
  format.tools = std::make_shared<const Tools>(tools_of(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "$defs": {"d": {"type": "object",
         "properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "next": {"$ref": "#/$defs/d"}}}},
         "properties": {"o": {"$ref": "#/$defs/d"}, "l": {"type": "array", "items": {"type": "string"}},
         "ll": {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}},
         "i": {"type": "object", "properties": {"item": {"type": "string"}}},
         "m": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"s": {"type": ["string", "null"]}}}]}}}}}])"));
  const std::string n = "]<]minimax[>[";
  const auto element = [&](const std::string& name, const std::string& value) {
    return n + "<" + name + ">" + value + n + "</" + name + ">";
  };
  const auto call = [&](const std::string& arguments) {
    return n + "<tool_call>\n" + n + "<invoke name=\"f\">" + arguments + n + "</invoke>\n" + n + "</tool_call>";
  };
  expect_parts(format, call(element("o", element("s", "5") + element("n", "5") + element("next", element("s", "true")))),
               {"", "", {R"(f{"o": {"s": "5", "n": 5, "next": {"s": "true"}}})"}});
  expect_parts(format, call(element("l", element("item", "1") + element("item", "null"))),
               {"", "", {R"(f{"l": ["1", "null"]})"}});
  expect_parts(format, call(element("ll", element("item", element("item", "true")) + element("item", ""))),
               {"", "", {R"(f{"ll": [[true], []]})"}});
  expect_parts(format, call(element("i", element("item", "1"))), {"", "", {R"(f{"i": {"item": "1"}})"}});
  expect_parts(format, call(element("m", element("s", "null")) + element("m", "null")),
               {"", "", {R"(f{"m": {"s": null}, "m": null})"}});
  expect_parts(format, call(element("l", "[\"a\"]")), {"", "", {R"(f{"l": ["a"]})"}});
}

TEST(FamilyReplies, MiniMax3ReadsElementsOfTheNameOfTheirParameter) {
  ReplyFormat format = family_format("minimax-m3", false);
  format.tools = std::make_shared<const Tools>(tools_of(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "$defs": {"t": {"type": "array",
         "items": {"type": "object", "properties": {"n": {"type": "integer"}, "children": {"$ref": "#/$defs/t"}}}}},
         "properties": {"children": {"$ref": "#/$defs/t"}, "item": {"type": "array", "items": {"type": "string"}},
         "a": {"type": "integer"}}}}}])"));
  const std::string n = "]<]minimax[>[";
  const auto element = [&](const std::string& name, const std::string& value) {
    return n + "<" + name + ">" + value + n + "</" + name + ">";
  };
  const auto call = [&](const std::string& arguments) {
    return n + "<tool_call>\n" + n + "<invoke name=\"f\">" + arguments + n + "</invoke>\n" + n + "</tool_call>";
  };
  const std::string leaf = element("item", element("n", "2"));
  const std::string inner = element("item", element("n", "1") + "\n  " + element("children", "\n" + leaf + leaf) + " ");
  expect_parts(
      format, call(element("children", inner + inner) + element("a", "3")),
      {"",
       "",
       {R"(f{"children": [{"n": 1, "children": [{"n": 2}, {"n": 2}]}, {"n": 1, "children": [{"n": 2}, {"n": 2}]}], "a": 3})"}});
  expect_parts(format, call(element("item", element("item", "x") + element("item", "y")) + element("a", "3")),
               {"", "", {R"(f{"item": ["x", "y"], "a": 3})"}});
  // Without its end, the value ends with the call.
  EXPECT_EQ(parse_reply(format, call(n + "<item>" + element("item", "x")), 1).calls,
            std::vector<std::string>{R"(f{"item": ["x"]})"});
}

TEST(FamilyReplies, MiniMax3ReadsDeepElementsInBoundedTime) {
  const std::string n = "]<]minimax[>[";
  std::string deep;
  for (int i = 0; i < 20'000; ++i) deep += n + "<k>";
  const ReplyFormat format = family_format("minimax-m3", false);
  const std::string text = n + "<tool_call>\n" + n + "<invoke name=\"f\">" + n + "<o>" + deep + n + "</o>" + n + "</invoke>";
  EXPECT_EQ(parse_reply(format, text, text.size()).calls.size(), 1u);
  std::string wide;
  for (int i = 0; i < 20'000; ++i) wide += n + "<k>1" + n + "</k>";
  EXPECT_EQ(parse_reply(format, n + "<tool_call>" + n + "<invoke name=\"f\">" + n + "<o>" + wide + n + "</o>" + n + "</invoke>",
                        text.size())
                .calls.size(),
            1u);
  std::string same;
  for (int i = 0; i < 5'000; ++i) same += n + "<o>1" + n + "</o>";
  EXPECT_EQ(
      parse_reply(format, n + "<tool_call>" + n + "<invoke name=\"f\">" + n + "<o>" + same + n + "</o>" + n + "</invoke>", 1)
          .calls.size(),
      1u);
}

// --- replies that a limit cuts

TEST(FamilyReplies, ACutReplyHasNoBeginOfAMarkInItsContent) {
  struct Cut {
    std::string_view family;
    std::string_view text;
    std::string_view content{};
  };
  constexpr Cut kCuts[] = {
      {"hermes", "C\n<tool_call>\n{\"name\": \"f\", \"argum", "C"},
      {"hermes-arguments-first", "<tool_call>\n{\"arguments\": {\"a\": 1}, \"na"},
      {"qwen3-coder", "<tool_call>\n<function=f>\n<parameter=a>\n"},
      {"qwen3-coder", "C <function=get_w", "C"},
      {"gpt-oss", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"},
      {"gpt-oss", "<|channel|>fin"},
      {"kimi-k3", "<|open|>response<|sep|>C<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"f", "C"},
      {"deepseek-dsml", "C\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">", "C"},
      {"lfm2", "<|tool_call_start|>[f(a="},
      {"command", "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_na"},
      {"command-r-plus", "Action:\n```json\n[\n    {\"tool_na"},
      // Text that may be something else stays.
      {"hermes", "a <", "a <"},
      {"command-r-plus", "Act", "Act"},
      {"llama3.2", "{\"a", "{\"a"},
      {"xlam-2", "[{\"na", "[{\"na"},
      {"hermes", "<table", "<table"},
  };
  for (const Cut& cut : kCuts) {
    const ReplyFormat format = family_format(cut.family, false);
    const std::string_view text = cut.text;
    for (std::size_t length = 1; length <= text.size(); ++length) {
      if (length < text.size() && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) continue;
      ReplyParser parser(format, 1);
      ReplyPieces pieces;
      parser.push(text.substr(0, length), pieces);
      parser.finish(pieces, true);
      EXPECT_FALSE(pieces.content.contains("<tool") || pieces.content.contains("<|")) << text.substr(0, length);
      if (length == text.size()) {
        EXPECT_EQ(pieces.content, cut.content) << cut.family << ": " << text;
      }
    }
  }
}

TEST(FamilyReplies, NothingInAnAnswerIsAMark) {
  for (const Family& family : families()) {
    ReplyFormat format = family_format(family.name, false);
    format.has_answer = true;
    std::string answer = "{\"s\": \"";
    for (const CallForm& form : family.calls)
      answer += std::string(form.open) + std::string(form.call) + std::string(form.close);
    for (const std::string_view mark : family.dropped) answer += mark;
    for (const Marks& marks : family.around) answer += std::string(marks.open) + std::string(marks.close);
    answer += std::string(format.thoughts.open) + std::string(format.thoughts.close) + " \"}";
    expect_parts(format, answer, {"", answer, {}});
    for (const std::string_view mark : family.before_answer) {
      std::string before(mark);
      for (std::size_t any = before.find("{any}"); any != std::string::npos; any = before.find("{any}"))
        before.replace(any, 5, " ");
      expect_parts(format, before + answer, {"", answer, {}});
    }
  }
}

// --- by chance

// Texts by chance, of the marks of a family and what stands between them.
TEST(FamilyReplies, NoReplyDependsOnItsPieces) {
  Random random(7);
  for (const Family& family : families()) {
    std::vector<std::string> parts{"f",  "g", "a",  "s", "1",          "true",
                                   "\n", " ", "\"", "{", "}",          "[",
                                   "]",  "x", ",",  ":", "{\"a\": 1}", R"({"name": "f", "arguments": {"a": 1}})"};
    const auto add = [&](std::string_view text) {
      for (const PatternPart& part : pattern_of(text)) {
        if (part.kind == PatternPart::Kind::text) parts.emplace_back(part.text);
      }
    };
    for (const CallForm& form : family.calls) {
      for (const std::string_view text : {form.open, form.call, form.between, form.close}) add(text);
    }
    for (const std::string_view mark : family.dropped) add(mark);
    for (const Marks& marks : family.around) add(marks.open);
    const ElementMarks& element = family.element;
    for (const std::string_view mark : {element.open, element.name_end, element.value_begin, element.text_attribute}) {
      if (!mark.empty()) parts.emplace_back(mark);
    }
    for (const std::string_view name : {"a", "o", "item"}) parts.push_back(close_of(element, name));
    const ReplyFormat format = family_format(family.name, false);
    for (int i = 0; i < 100; ++i) {
      std::string text;
      while (random.next_below(12) != 0) text += parts[random.next_below(parts.size())];
      const FamilyReply whole = parse_reply(format, text, text.size() + 1);
      for (const std::size_t step : {std::size_t{1}, std::size_t{3}})
        ASSERT_EQ(parse_reply(format, text, step), whole) << family.name << ", in pieces of " << step << ": " << text;
    }
  }
}

}  // namespace
}  // namespace uma::chat
