// Replies of each family of models, as docs/MODELS.md describes them: thoughts and content, one call, several, and content
// before a call, in pieces of every size.
#include "chat/family.h"

#include <algorithm>
#include <format>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "chat/nested_elements.h"
#include "chat/reply_parser.h"
#include "chat/tool_format.h"

namespace uma::chat {
namespace {

struct FamilyReply {
  std::string thoughts;
  std::string content;
  std::vector<std::string> calls;  // Name, id if the model gives one, arguments.
  bool operator==(const FamilyReply&) const = default;
};

std::ostream& operator<<(std::ostream& out, const FamilyReply& reply) {
  out << "thoughts \"" << reply.thoughts << "\", content \"" << reply.content << "\"";
  for (const std::string& call : reply.calls) out << ", call " << call;
  return out;
}

constexpr std::string_view kFamilyTools = R"([
  {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
    "a": {"type": "integer"}, "s": {"type": "string"}, "b": {"type": "boolean"}, "n": {"type": ["string", "null"]},
    "o": {"type": "object"}, "l": {"type": "array", "items": {"type": "number"}}}}}},
  {"type": "function", "function": {"name": "g"}},
  {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
    "properties": {"city": {"type": "string"}, "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}}}])";

ReplyFormat family_format(std::string_view family, bool begins_with_thoughts) {
  const Family* row = family_named(family);
  EXPECT_NE(row, nullptr) << family;
  return {.family = row,
          .tools = std::make_shared<const Tools>(tools_of(kFamilyTools)),
          .thoughts = thoughts_of("<think></think>", row),
          .begins_with_reasoning = begins_with_thoughts};
}

// In pieces of `step` characters, the first one of `first`.
FamilyReply parse_reply(const ReplyFormat& format, std::string_view text, std::size_t step, std::size_t first) {
  ReplyParser parser(format, 1);
  std::string content;
  ReplyPieces pieces;
  for (std::size_t count = first; !text.empty(); count = step) {
    std::size_t size = 0;
    for (std::size_t i = 0; i < count && size < text.size(); ++i) {
      do ++size;
      while (size < text.size() && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80);
    }
    pieces.clear();
    parser.push(text.substr(0, size), pieces);
    content += pieces.content;
    text.remove_prefix(size);
  }
  pieces.clear();
  parser.finish(pieces);
  content += pieces.content;
  FamilyReply reply{.thoughts = parser.reasoning(), .content = content, .calls = {}};
  for (const ReplyPart& call : parser.calls()) {
    const bool has_own_id = call.id.contains(':') || call.id.size() != 9 || call.id == "123456789";
    reply.calls.push_back(call.name + (has_own_id ? "#" + call.id : "") + call.text);
  }
  return reply;
}

FamilyReply parse_reply(const ReplyFormat& format, std::string_view text, std::size_t step) {
  return parse_reply(format, text, step, step);
}

// Cut at every character, and in pieces of several sizes.
void expect_parts(const ReplyFormat& format, std::string_view text, const FamilyReply& wanted) {
  for (std::size_t first = 0; first <= std::min(text.size(), std::size_t{1000}); ++first)
    EXPECT_EQ(parse_reply(format, text, text.size() + 1, first), wanted)
        << format.family->name << ", " << first << ": " << text;
  for (const std::size_t step :
       {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{5}, std::size_t{17}, text.size() + 1})
    EXPECT_EQ(parse_reply(format, text, step), wanted) << format.family->name << ", in pieces of " << step << ": " << text;
}

void expect_parts(std::string_view family, std::string_view text, const FamilyReply& wanted,
                  bool begins_with_thoughts = false) {
  expect_parts(family_format(family, begins_with_thoughts), text, wanted);
}

// --- recognised by their templates

TEST(Families, ATemplateShowsItsFamily) {
  const auto name = [](std::string_view chat_template) {
    const Family* family = family_of(std::string("{{ tools }}") + std::string(chat_template));
    return family == nullptr ? std::string_view("none") : family->name;
  };
  EXPECT_EQ(name("<|start|>assistant<|channel|>final<|message|>"), "gpt-oss");
  EXPECT_EQ(name("<tool_call>\n<function=x>\n<parameter=y>"), "qwen3-coder");
  EXPECT_EQ(name("<seed:tool_call><function=x><parameter=y>"), "seed-oss");
  EXPECT_EQ(name("[gMASK]<sop><tool_call><arg_key>"), "glm");
  EXPECT_EQ(name("[gMASK]<sop><tool_call><arg_key>{k}</arg_key><arg_value>{v}</arg_value>"), "glm-4.7");
  EXPECT_EQ(name("<tool_call>\n<function=x>\n<parameter=y> <|im_start|>tool_response"), "step-3.5");
  EXPECT_EQ(name("[|assistant|]<tool_call>"), "exaone");
  EXPECT_EQ(name("<|header_start|>ipython<|header_end|><|python_start|>"), "llama4");
  EXPECT_EQ(name("<|header_start|>ipython<|header_end|>"), "llama4-json");
  EXPECT_EQ(name("<minimax:tool_call><invoke"), "minimax");
  EXPECT_EQ(name("]<]minimax[>[ <tool_call> <response>"), "minimax-m3");
  EXPECT_EQ(name("<｜DSML｜function_calls>"), "deepseek-dsml");
  EXPECT_EQ(name("'<' ~ '｜DSML｜' ~ 'function_calls>'"), "deepseek-dsml");
  EXPECT_EQ(name("message.tool_calls <｜DSML｜tool_calls>"), "deepseek-v4");
  EXPECT_EQ(name("<|extra_0|><tool_calls>"), "hunyuan");
  EXPECT_EQ(name("<tool_calls>[BEGIN FINAL RESPONSE]"), "apriel");
  EXPECT_EQ(name("<tool_calls><|bom|>"), "jamba");
  EXPECT_EQ(name("<tool_calls>"), "tool-calls-list");
  EXPECT_EQ(name("List of tools: <|tool_list_start|>["), "lfm2");
  EXPECT_EQ(name("List of tools: ["), "lfm2.5");
  EXPECT_EQ(name("[TOOL_CALLS][CALL_ID][ARGS]"), "mistral-id");
  EXPECT_EQ(name("[TOOL_CALLS][ARGS]"), "mistral-args");
  EXPECT_EQ(name("[TOOL_CALLS]"), "mistral");
  EXPECT_EQ(name("<|tool_calls_section_begin|><|tool_call_argument_begin|>"), "kimi");
  EXPECT_EQ(name("<｜tool▁calls▁begin｜>function<｜tool▁sep｜>```json"), "deepseek");
  EXPECT_EQ(name("<｜tool▁calls▁begin｜><｜tool▁sep｜>"), "deepseek-3.1");
  EXPECT_EQ(name("<|turn>model<|tool_call>call:"), "gemma4");
  EXPECT_EQ(name("<tool_call>\n{\"name\""), "hermes");
  EXPECT_EQ(name("<|python_tag|>"), "llama3");
  EXPECT_EQ(name("Action:\n```json or directly_answer"), "command-r-plus");
  EXPECT_EQ(name("<|start_header_id|>>>>all\n"), "functionary-3.2");
  EXPECT_EQ(name("'function call' ~ '<|role_sep|>\n'"), "gigachat-3");
  EXPECT_EQ(name("<|function_call|><|role_sep|>"), "gigachat");
  EXPECT_EQ(name("'<|open|>' ~ 'argument' ~ '<|sep|>' ~ '<|close|>'"), "kimi-k3");
  EXPECT_EQ(name("<use_mcp_tool>\n<server_name>"), "mirothinker");
  EXPECT_EQ(name("ipython parameters [{\"name\": NAME}]"), "xlam-2");
  EXPECT_EQ(name("<|python_tag|> ipython parameters [{\"name\": NAME}]"), "llama3");
  EXPECT_EQ(name("ipython parameters {\"name\": NAME}"), "llama3.2");
  EXPECT_EQ(name("<tool_call>\n{\"arguments\": ARGUMENTS, \"name\""), "hermes-arguments-first");
  EXPECT_EQ(name("[TOOL_CALLS] [{"), "mistral-3");
  EXPECT_EQ(name("nothing of it"), "none");
  EXPECT_EQ(family_of("<tool_call>"), nullptr) << "a template that takes no tools";
}

TEST(Families, HaveNamesOfTheirOwn) {
  for (const Family& family : families()) EXPECT_EQ(family_named(family.name), &family);
}

// The parser skips whitespace before it looks for a mark.
TEST(Families, NoMarkBeginsWithWhitespace) {
  const auto check = [](std::string_view mark) { EXPECT_EQ(blanks_at_begin(mark), 0u) << mark; };
  for (const Family& family : families()) {
    for (const CallForm& form : family.calls) check(std::string(form.open) + std::string(form.call));
    for (const std::string_view mark : family.dropped) check(mark);
    for (const Marks& marks : family.around) {
      check(marks.open);
      check(marks.close);
    }
    const Marks thoughts = thoughts_of("<think></think>", &family);
    check(thoughts.open);
    check(thoughts.close);
    check(family.element.open);
    check(family.element.close);
  }
}

// --- gpt-oss

TEST(Families, Harmony) {
  expect_parts("gpt-oss", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes<|return|>",
               {"hm", "yes", {}});
  const std::string think = "<|channel|>analysis<|message|>R<|end|><|start|>assistant";
  for (const std::string_view head :
       {"<|channel|>commentary to=functions.f <|constrain|>json<|message|>", "<|channel|>commentary to=functions.f<|message|>",
        "<|channel|>analysis to=functions.f <|constrain|>json<|message|>",
        " to=functions.f<|channel|>commentary json<|message|>", "<|channel|>commentary to=functions.f json<|message|>",
        " to=functions.f<|channel|>commentary <|constrain|>json<|message|>"}) {
    expect_parts("gpt-oss", think + std::string(head) + R"({"a": 1}<|call|>)", {"R", "", {R"(f{"a": 1})"}});
  }
  expect_parts("gpt-oss",
               "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.g "
               "<|constrain|>json<|message|>{}<|call|>",
               {"", "I look.", {"g{}"}});
  expect_parts("gpt-oss", "no header at all", {"", "no header at all", {}});
  expect_parts("gpt-oss", "<|channel|>analysis<|message|>one<|end|><|start|>assistant<|channel|>analysis<|message|>two<|end|>",
               {"onetwo", "", {}});
}

// --- elements

TEST(Families, QwenCoder) {
  expect_parts("qwen3-coder", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
               {"", "", {R"(f{"a": 1})"}});
  expect_parts("qwen3-coder",
               "Look.\n<tool_call>\n<function=f>\n<parameter=s>\n  x = \"<b>\" && y\n\n</parameter>\n<parameter=b>\nTrue\n"
               "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
               {"", "Look.", {R"(f{"s": "  x = \"<b>\" && y\n", "b": true})", "g{}"}});
  expect_parts("qwen3-coder", "R\n</think>\n\n<function=f>\n<parameter=n>\nnull\n</parameter>\n</function>\n</tool_call>\n",
               {"R", "", {R"(f{"n": null})"}}, true);
  expect_parts("qwen3-coder", "<function=unknown>\n</function>", {"", "<function=unknown>\n</function>", {}});
  expect_parts("qwen3-coder",
               "<tool_call>\n<function=f>\n<parameter=o>\n{\"x\": [1]}\n</parameter>\n<parameter=l>\n[1, 2.5]\n</parameter>\n"
               "<parameter=new>\n5\n</parameter>\n<parameter=a>\nmany\n</parameter>\n</function>\n</tool_call>",
               {"", "", {R"(f{"o": {"x": [1]}, "l": [1, 2.5], "new": "5", "a": "many"})"}});
  expect_parts("qwen3-coder", "<tool_call>\n<function=f>\n<parameter=o>\n{'x': True}\n</parameter>\n</function>\n",
               {"", "", {R"(f{"o": {"x": true}})"}});
}

TEST(Families, SeedOss) {
  expect_parts("seed-oss",
               "<seed:think>R</seed:think>\nC\n<seed:tool_call>\n<function=f>\n<parameter=a>1</parameter>\n</function>\n"
               "</seed:tool_call>",
               {"R", "C", {R"(f{"a": 1})"}});
}

TEST(Families, Glm) {
  expect_parts("glm", "\n<think>R</think>\nC\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
               {"R", "C", {R"(f{"a": 1})"}});
  expect_parts(
      "glm", "R</think><tool_call>f<arg_key>s</arg_key><arg_value> two\nlines </arg_value></tool_call><tool_call>g</tool_call>",
      {"R", "", {R"(f{"s": "two\nlines"})", "g{}"}}, true);
  expect_parts("glm", "<tool_call>g\n</tool_call>\n", {"", "", {"g{}"}});
}

TEST(Families, MiniMax) {
  expect_parts("minimax",
               "R\n</think>\n\nC\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">1</parameter>\n</invoke>\n"
               "<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
               {"R", "C", {R"(f{"a": 1})", "g{}"}}, true);
  expect_parts("minimax", "<minimax:tool_call>\n<invoke name='f'>\n<parameter name='s'>x</parameter>\n</invoke>\n",
               {"", "", {R"(f{"s": "x"})"}});
}

TEST(Families, DeepSeekDsml) {
  expect_parts("deepseek-dsml",
               "R</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" "
               "string=\"false\">1</｜DSML｜parameter>\n<｜DSML｜parameter name=\"s\" string=\"true\">1</｜DSML｜parameter>\n"
               "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
               {"R", "", {R"(f{"a": 1, "s": "1"})"}}, true);
}

TEST(Families, DeepSeek4) {
  expect_parts("deepseek-v4",
               "R</think>\n\nC\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" "
               "string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>\n"
               "</｜DSML｜tool_calls>",
               {"R", "C", {R"(f{"a": 1})", "g{}"}}, true);
}

TEST(Families, MiniMax3) {
  const std::string n = "]<]minimax[>[";
  expect_parts("minimax-m3",
               "R</mm:think>C\n" + n + "<tool_call>\n" + n + "<invoke name=\"f\">" + n + "<s>a[i]<b, <x>\n" + n + "</s>" + n +
                   "<a>1" + n + "</a>\n" + n + "</invoke>\n" + n + "<invoke name=\"g\">" + n + "</invoke>\n" + n +
                   "</tool_call>",
               {"R", "C", {R"(f{"s": "a[i]<b, <x>", "a": 1})", "g{}"}}, true);
  const auto element = [&](const std::string& name, const std::string& value) {
    return n + "<" + name + ">" + value + n + "</" + name + ">";
  };
  const std::string numbers = element("l", element("item", "1") + "\n" + element("item", "2.5"));
  const std::string object = element("o", element("k", "x y") + element("m", element("k", "true")) + element("e", ""));
  expect_parts("minimax-m3",
               n + "<tool_call>\n" + n + "<invoke name=\"f\">\n" + numbers + "\n" + object + "\n" + n + "</invoke>",
               {"", "", {R"(f{"l": [1, 2.5], "o": {"k": "x y", "m": {"k": true}, "e": ""}})"}});
  expect_parts("minimax-m3",
               n + "<tool_call>\n" + n + "<invoke name=\"f\">" + n + "<s>x" + n + "</invoke>\n" + n + "</tool_call>C",
               {"", "C", {R"(f{"s": "x"})"}});
  expect_parts("minimax-m3",
               n + "<tool_call>\n" + n + "<invoke name=\"f\">" + element("o", "") + element("l", "\n") + n + "</invoke>",
               {"", "", {R"(f{"o": {}, "l": []})"}});
}

TEST(Families, MiniMax3TypesTheElementsOfElementsByTheirSchemas) {
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

TEST(Families, MiniMax3ReadsDeepElementsInBoundedTime) {
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
}

// --- JSON behind a name

TEST(Families, MistralWithArgs) {
  expect_parts("mistral-args", R"(C[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{})", {"", "C", {R"(f{"a": 1})", "g{}"}});
  ReplyFormat format = family_format("mistral-args", false);
  format.thoughts = {"[THINK]", "[/THINK]"};
  EXPECT_EQ(parse_reply(format, R"([THINK]R[TOOL_CALLS]f[ARGS]{}[/THINK]C)", 3),
            (FamilyReply{"R[TOOL_CALLS]f[ARGS]{}", "C", {}}));
}

TEST(Families, MistralWithIds) {
  expect_parts("mistral-id", R"([TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": 1})", {"", "", {R"(f#123456789{"a": 1})"}});
}

TEST(Families, Kimi) {
  expect_parts("kimi",
               "<think>R</think>C<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
               "{\"a\": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
               "<|tool_calls_section_end|>",
               {"R", "C", {R"(f#functions.f:0{"a": 1})", "g#functions.g:1{}"}});
  expect_parts("kimi", "<|tool_call_begin|>functions.g:3<|tool_call_argument_begin|>{}", {"", "", {"g#functions.g:3{}"}});
  expect_parts("kimi", "<think>R<|tool_call_begin|>functions.g:3<|tool_call_argument_begin|>{}<|tool_call_end|>",
               {"R", "", {"g#functions.g:3{}"}});
}

TEST(Families, DeepSeek31) {
  expect_parts("deepseek-3.1",
               "C<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g"
               "<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
               {"", "C", {R"(f{"a": 1})", "g{}"}});
}

TEST(Families, Functionary) {
  expect_parts("functionary-3.1", R"(C<function=f>{"a": 1}</function><function=g>{}</function>)",
               {"", "C", {R"(f{"a": 1})", "g{}"}});
}

// --- JSON with the name

TEST(Families, JsonInMarks) {
  const std::string one = R"({"name": "f", "arguments": {"a": 1}})";
  const std::string two = one + R"(, {"name": "g", "arguments": {}})";
  const FamilyReply wanted{"", "C", {R"(f{"a": 1})", "g{}"}};
  expect_parts("nemotron-nano-2", "C\n<TOOLCALL>[" + two + "]</TOOLCALL>", wanted);
  expect_parts("granite-3", "C<|tool_call|>[" + two + "]", wanted);
  expect_parts("phi-4-mini", "C<|tool_call|>[" + two + "]<|/tool_call|>", wanted);
  expect_parts("phi-4-mini", "C functools[" + two + "]", wanted);
  expect_parts("tool-calls-list", "C\n<tool_calls>[" + two + "]</tool_calls>", wanted);
  expect_parts("internlm", "C<|action_start|><|plugin|>\n{\"name\": \"f\", \"parameters\": {\"a\": 1}}<|action_end|>",
               {"", "C", {R"(f{"a": 1})"}});
  expect_parts("gigachat", "C<|function_call|>" + one, {"", "C", {R"(f{"a": 1})"}});
  expect_parts("apertus",
               "<|inner_prefix|>R<|inner_suffix|>C<|tools_prefix|>[{\"f\": {\"a\": 1}}, {\"g\": {}}]<|tools_suffix|>",
               {"R", "C", {R"(f{"a": 1})", "g{}"}});
  expect_parts("command",
               "<|START_THINKING|>R<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", "
               "\"parameters\": {\"a\": 1}}\n]<|END_ACTION|>",
               {"R", "", {R"(f#0{"a": 1})"}});
  expect_parts("command", "<|START_RESPONSE|>C<|END_RESPONSE|>", {"", "C", {}});
  expect_parts("ernie", "R\n</think>\n\n<response>\nC\n</response>\n", {"R", "C", {}}, true);
  expect_parts("hermes", R"(<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>)", {"", "", {R"(f{"a": 1})"}});
}

TEST(Families, Hunyuan) {
  const std::string call = R"(<tool_calls>[{"name": "f", "arguments": {"a": 1}}]</tool_calls>)";
  expect_parts("hunyuan", "<think>\nR " + call + "\n</think>\n<answer>\nC </think>\n</answer>",
               {"R " + call, "C </think>", {}});
  expect_parts("hunyuan", "<think>\n\n</think>\n<answer>助手：C\n" + call + "</answer>\n", {"", "C", {R"(f{"a": 1})"}});
  expect_parts("hunyuan", "C 助手： and <answer>", {"", "C 助手： and <answer>", {}});
}

TEST(Families, Apriel) {
  const std::string call = R"(<tool_calls>[{"name": "f", "arguments": {"a": 1}, "id": "0"}]</tool_calls>)";
  expect_parts("apriel", "Here are my reasoning steps:\nR\n[BEGIN FINAL RESPONSE]\nC\n[END FINAL RESPONSE]", {"R", "C", {}});
  expect_parts("apriel", "R\n[BEGIN FINAL RESPONSE]\nC\n" + call, {"R", "C", {R"(f{"a": 1})"}}, true);
  expect_parts("apriel", "Here are two.", {"", "Here are two.", {}});
}

TEST(Families, Lfm2WritesJsonToo) {
  expect_parts("lfm2", R"(<|tool_call_start|>[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]<|tool_call_end|>then)",
               {"", "then", {R"(f{"a": 1})", "g{}"}});
}

// --- families whose calls have no mark, or one that is also something else

TEST(Families, CommandRPlus) {
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

TEST(Families, ACallThatStandsForNoneMayBeATool) {
  ReplyFormat format = family_format("command-r-plus", false);
  format.tools = std::make_shared<const Tools>(Tools{{"directly_answer", {}}});
  expect_parts(format, "Action:\n```json\n[{\"tool_name\": \"directly_answer\", \"parameters\": {}}]\n```",
               {"", "", {"directly_answer{}"}});
}

TEST(Families, Functionary32) {
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
  expect_parts("functionary-3.2", "g\n{\"x\": nope}", {"", "}", {R"(g{"x": nope)"}});
}

TEST(Families, Functionary32WritesPythonAsItIs) {
  ReplyFormat format = family_format("functionary-3.2", false);
  format.tools = std::make_shared<const Tools>(tools_of(
      R"([{"type": "function", "function": {"name": "python", "parameters": {"type": "object", "properties": {"source": {"type":
         "string"}}}}}, {"type": "function", "function": {"name": "f"}}])"));
  expect_parts(format, "python\nprint(\"a\")\n", {"", "", {R"(python{"source": "print(\"a\")\n"})"}});
  expect_parts(format, "f\n{}>>>python\nx = [1]", {"", "", {"f{}", R"(python{"source": "x = [1]"})"}});
  expect_parts(format, "python\n{\"source\": \"1\"}", {"", "", {R"(python{"source": "1"})"}});
  expect_parts(format, "python is a snake\n", {"", "python is a snake\n", {}});
  expect_parts("functionary-3.2", "python\nx", {"", "python\nx", {}});
}

TEST(Families, GigaChat3) {
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

TEST(Families, KimiK3) {
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

TEST(Families, MiroThinker) {
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

TEST(Families, Xlam2) {
  const std::string f = R"({"name": "f", "arguments": {"a": 1}})";
  expect_parts("xlam-2", "[" + f + "]", {"", "", {R"(f{"a": 1})"}});
  expect_parts("xlam-2", "[" + f + R"(, {"name": "g", "arguments": {}}])", {"", "", {R"(f{"a": 1})", "g{}"}});
  expect_parts("xlam-2", "```json\n[" + f + "]\n```", {"", "", {R"(f{"a": 1})"}});
  expect_parts("xlam-2", "<think>R</think>\n[" + f + "]", {"R", "", {R"(f{"a": 1})"}});
  for (const std::string& text : {std::string("[1, 2]"), std::string(R"([{"name": "unknown", "arguments": {}}])"),
                                  std::string(R"([{"a": {"name": "f"}}])"), "C [" + f + "]", std::string("```json\n{}\n```"),
                                  std::string("[{\"name\": \"f\"")})
    expect_parts("xlam-2", text, {"", text, {}});
}

// Whatever a limit cuts, what was emitted stays the begin of the call, and no mark becomes content.
TEST(Families, ALimitCutsACallAnywhere) {
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

TEST(Families, TheIdBehindTheArgumentsOfAForcedCallCounts) {
  ReplyFormat format = family_format("mistral-3", false);
  EXPECT_TRUE(has_late_id(*format.family));
  const std::string reply = R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "123456789"}])";
  expect_parts(format, reply, {"", "", {R"(f{"a": 1})"}});
  format.waits_for_ids = true;
  expect_parts(format, reply, {"", "", {R"(f#123456789{"a": 1})"}});
  expect_parts(format, R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "1"}])", {"", "", {R"(f{"a": 1})"}});
  // A limit leaves what has come.
  ReplyParser parser(format, 1);
  ReplyPieces pieces;
  parser.push(R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": 1)", pieces);
  parser.finish(pieces, true);
  EXPECT_EQ(pieces.content, "");
  EXPECT_EQ(parser.calls().at(0).text, R"({"a": 1)");
}

// --- as in Python

TEST(Families, CallsAsInPython) {
  expect_parts("lfm2", "<|tool_call_start|>[f(a=1, s=\"x, y\"), g()]<|tool_call_end|>then",
               {"", "then", {R"(f{"a": 1, "s": "x, y"})", "g{}"}});
  expect_parts("lfm2", "C[f(s='it's', b=True, n=None, l=[1, -2.5], o={'k': [{}]})]",
               {"", "C", {R"(f{"s": "it's", "b": true, "n": null, "l": [1, -2.5], "o": {"k": [{}]}})"}});
  expect_parts("lfm2", "a list [1, 2] and [x(y=1)]", {"", "a list [1, 2] and [x(y=1)]", {}});
  expect_parts("llama4", "[f(a='x\\n\\'', b=1), g()]", {"", "", {R"(f{"a": "x\n'", "b": 1})", "g{}"}});
  expect_parts("llama4", "see [f(a=1)]", {"", "see [f(a=1)]", {}});
  expect_parts("olmo-3", "<think>R</think>C<function_calls>f(a=\"x\")\ng()</function_calls>",
               {"R", "C", {R"(f{"a": "x"})", "g{}"}});
  expect_parts("smollm3", "<think>\nR\n</think>\n<code>f(a=1)</code>", {"R", "", {R"(f{"a": 1})"}});
  expect_parts("llama4", "[f(x)]", {"", "[f(x)]", {}});
}

TEST(Families, Llama4WritesJsonToo) {
  expect_parts("llama4", R"({"name": "f", "parameters": {"a": 1}})", {"", "", {R"(f{"a": 1})"}});
}

// --- Gemma

TEST(Families, Gemma) {
  expect_parts("gemma4",
               "<|channel>thought\nR\n<channel|>C<|tool_call>call:f{a:1,s:<|\"|>a \"b\", {c}\n<|\"|>,b:true,l:[1,2],o:{k:null}}"
               "<tool_call|><|tool_call>call:g{}<tool_call|>",
               {"R", "C", {R"(f{"a": 1, "s": "a \"b\", {c}\n", "b": true, "l": [1, 2], "o": {"k": null}})", "g{}"}});
  expect_parts("gemma4", "<|channel>thought\n<channel|>C", {"", "C", {}});
  expect_parts("functiongemma", "<start_function_call>call:f{s:<escape>x<escape>,a:1}<end_function_call>",
               {"", "", {R"(f{"s": "x", "a": 1})"}});
}

// --- what goes wrong

TEST(Families, AMarkAloneIsContent) {
  for (const Family& family : families()) {
    const CallForm& form = family.calls.front();
    const std::string text =
        "so " + std::string(form.open.empty() ? form.call.substr(0, 4) : form.open.substr(0, 4)) + " and on";
    expect_parts(family.name, text, {"", text, {}});
  }
}

TEST(Families, ACallWithinThoughtsEndsThemIfItNamesATool) {
  expect_parts("qwen3-coder", "R <tool_call>\n<function=g>\n</function>\n</tool_call>", {"R", "", {"g{}"}}, true);
  expect_parts("qwen3-coder", "the format is <tool_call>\n<function=name> and so on</think>C",
               {"the format is <tool_call>\n<function=name> and so on", "C", {}}, true);
}

TEST(Families, ALimitDoesNotCloseACall) {
  ReplyParser parser(family_format("qwen3-coder", false), 1);
  ReplyPieces pieces;
  parser.push("<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n", pieces);
  parser.finish(pieces, true);
  EXPECT_EQ(parser.calls().at(0).text, R"({"a": 1)");
}

TEST(Families, ACallWithoutANameIsContent) {
  const std::string text = "<|tool_call_begin|>functions.:0<|tool_call_argument_begin|>{}<|tool_call_end|>";
  expect_parts("kimi", text, {"", text, {}});
}

TEST(Families, ASchemaWhosePartsReferToEachOtherIsReadInBoundedTime) {
  std::string parts;
  for (int i = 0; i < 1000; ++i) parts += std::string(i == 0 ? "" : ",") + R"({"$ref": "#/$defs/a"})";
  const Tools tools = tools_of(R"([{"type": "function", "function": {"name": "f", "parameters": {"$defs": {"a": {"anyOf": [)" +
                               parts + R"(]}}, "properties": {"p": {"$ref": "#/$defs/a"}, "q": {"type": "integer"}}}}}])");
  EXPECT_EQ(tools.at("f").at("p"), TypeSet());
}

// --- limits and missing marks

TEST(Families, LimitsDoNotDependOnThePieces) {
  const std::string head = "<tool_call>" + std::string(1100, '\n') + R"({"name": "f", "arguments": {}}</tool_call>)";
  expect_parts("hermes", head, {"", head, {}});
  const std::string name = "<parameter=" + std::string(300, 'x') + ">\n2\n</parameter>\n</function>\n</tool_call>";
  expect_parts("qwen3-coder", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n" + name,
               {"", name, {R"(f{"a": 1})"}});
  const std::string attribute = "<｜DSML｜parameter name=\"s\" " + std::string(300, 'x') + ">2</｜DSML｜parameter>";
  expect_parts("deepseek-dsml", "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n" + attribute,
               {"", "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n" + attribute, {}});
  expect_parts("lfm2", "<|tool_call_start|>[f(s='a'" + std::string(100, ' ') + "b')]", {"", "b')]", {R"(f{"s": "a")"}});
  const std::string word = "<|tool_call_start|>[f(a=1" + std::string(2000, ' ') + ")]";
  expect_parts("lfm2", word, {"", word, {}});
}

// Texts by chance, of the marks of a family and what stands between them.
TEST(Families, NoReplyDependsOnItsPieces) {
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

TEST(Families, AValueWithoutItsEndEndsBeforeTheNextElement) {
  const std::string begin = "<tool_call>\n<function=f>\n<parameter=s>\nline";
  const std::string end = "\n</function>\n</tool_call>";
  expect_parts("qwen3-coder", begin + "\n<parameter=a>\n1\n</parameter>" + end, {"", "", {R"(f{"s": "line", "a": 1})"}});
  expect_parts("qwen3-coder", begin + "\n\n  <parameter=a>\n1" + end, {"", "", {R"(f{"s": "line\n", "a": 1})"}});
  expect_parts("qwen3-coder", begin + end + "\nC", {"", "C", {R"(f{"s": "line"})"}});
  expect_parts("qwen3-coder", "<tool_call>\n<function=f>\n<parameter=s>\n<parameter=a>\n1\n</parameter>" + end,
               {"", "", {R"(f{"s": "", "a": 1})"}});
  expect_parts("glm", "<tool_call>f<arg_key>s</arg_key><arg_value>x<arg_key>a</arg_key><arg_value>1</tool_call>",
               {"", "", {R"(f{"s": "x", "a": 1})"}});
  expect_parts("minimax",
               "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">x\n<parameter name=\"a\">1\n</invoke>\n"
               "</minimax:tool_call>",
               {"", "", {R"(f{"s": "x", "a": 1})"}});
}

TEST(Families, MarksWithinAValueAreText) {
  const std::string begin = "<tool_call>\n<function=f>\n<parameter=s>\n";
  const std::string end = "\n</parameter>\n</function>\n</tool_call>";
  expect_parts("qwen3-coder", begin + "x <parameter=a> y\n</function>\nz\n<parameter=new>\n<b>" + end,
               {"", "", {R"(f{"s": "x <parameter=a> y\n</function>\nz\n<parameter=new>\n<b>"})"}});
  expect_parts("qwen3-coder", begin + "\n    indented\n  " + end, {"", "", {R"(f{"s": "\n    indented\n  "})"}});
}

TEST(Families, TheEndOfAReplyEndsAValue) {
  const std::string begin = "<tool_call>\n<function=f>\n<parameter=s>\nline 1\nline 2";
  for (const std::string_view end : {"", "\n", "\n</par", "\n</function>", "\n</parameter>\n</fun"})
    expect_parts("qwen3-coder", begin + std::string(end), {"", "", {R"(f{"s": "line 1\nline 2"})"}});
  expect_parts("qwen3-coder", "<tool_call>\n<function=f>\n<parameter=a>\n12", {"", "", {R"(f{"a": 12})"}});
}

TEST(Families, ALimitDropsTheBegunMarksOfACall) {
  for (const std::string_view text :
       {"<tool_call>\n<function=f>\n<parameter=s>\nline\n</para", "<tool_call>\n<function=f>\n<parameter=s>\nline\n",
        "<tool_call>\n<function=f>\n<parameter=s>\nline\n</parameter>\n</func",
        "<tool_call>\n<function=f>\n<parameter=s>\nline\n</parameter>\n</function>\n</tool_c"}) {
    ReplyParser parser(family_format("qwen3-coder", false), 1);
    ReplyPieces pieces;
    parser.push(text, pieces);
    parser.finish(pieces, true);
    EXPECT_EQ(pieces.content, "") << text;
    EXPECT_TRUE(parser.calls().at(0).text.starts_with(R"({"s": "line)")) << text;
  }
}

TEST(Families, WhatGoesWrongBehindAnElementClosesTheArguments) {
  expect_parts("qwen3-coder", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\njunk </function>",
               {"", "junk </function>", {R"(f{"a": 1})"}});
  expect_parts("lfm2", "<|tool_call_start|>[f(a=1 {b})]", {"", "{b})]", {R"(f{"a": 1)"}});
}

TEST(Families, AnObjectMayLackItsLastBrace) {
  const FamilyReply wanted{"", "", {R"(f{"a": 1})"}};
  expect_parts("hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call>", wanted);
  expect_parts("hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}", wanted);
}

TEST(Families, TextBehindACallIsNotLost) {
  const std::string call = "<|tool_call_start|>[f(a=1)";
  const std::vector<std::string> calls{R"(f{"a": 1})"};
  expect_parts("lfm2", call + ", go", {"", ", go", calls});
  expect_parts("lfm2", call + ", then", {"", ", then", calls});
  expect_parts("lfm2", call + ", ", {"", "", calls});
  expect_parts("hermes", "<tool_call>{\"name\": \"g\"}</tool_call>\n<tool_c", {"", "<tool_c", {"g{}"}});
  expect_parts("hermes", "<tool_call>{\"name\": \"g\"}</tool_call></tool_call>C", {"", "C", {"g{}"}});
  expect_parts("mistral", "[TOOL_CALLS][{\"name\": \"g\"}]] C", {"", "] C", {"g{}"}});
}

// --- marks around thoughts and content

TEST(Families, MarksAroundContentCountOnlyThere) {
  const std::string text = "Use <response> and </response>, <answer> and </answer>.";
  for (const std::string_view family : {"ernie", "granite-3", "tool-calls-list"})
    expect_parts(family, "<think>R</think>\n\n" + text, {"R", text, {}});
  expect_parts("ernie", "R\n</think>\n\n<response>\nThe <response> tag\n</response>\n", {"R", "The <response> tag", {}}, true);
}

TEST(Families, HeadersStayWhereThoughtsAreContent) {
  const auto expect_content = [](std::string_view family, std::string_view text, std::string_view content,
                                 const std::vector<std::string>& calls = {}, bool begins_with_thoughts = false) {
    ReplyFormat format = family_format(family, begins_with_thoughts);
    format.keeps_thoughts = true;
    for (const std::size_t step : {std::size_t{1}, std::size_t{3}, text.size()})
      EXPECT_EQ(parse_reply(format, text, step), (FamilyReply{"", std::string(content), calls})) << family << ", " << step;
  };
  expect_content("gpt-oss", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes",
                 "<|channel|>analysis<|message|>hm<|end|>yes");
  expect_content("ernie", "\nR\n</think>\n\n<response>\nC\n</response>\n", "\nR\n</think>C", {}, true);
  expect_content("command", "<|START_RESPONSE|>C<|END_RESPONSE|>", "C");
  expect_content("hermes", " <think>\nR\n</think>\n\nC", " <think>\nR\n</think>\n\nC");
  expect_content("hermes", "R \n<tool_call>{\"name\": \"g\"}</tool_call>\n</think>C", "R</think>C", {"g{}"}, true);
}

TEST(Families, AnUnfinishedCallWithinThoughtsIsAThought) {
  expect_parts("hermes", "R <tool_call>\n{\"name\": \"f\"", {"R <tool_call>\n{\"name\": \"f\"", "", {}}, true);
  ReplyParser parser(family_format("qwen3-coder", true), 1);
  ReplyPieces pieces;
  parser.push("R <tool_call>\n<function=g>\n", pieces);
  parser.finish(pieces, true);
  EXPECT_EQ(pieces.content, "");
  EXPECT_EQ(parser.reasoning(), "R <tool_call>\n<function=g>");
}

TEST(Families, TheEndOfThoughtsMayComeBehindACallWithinThem) {
  const std::string call = "R<tool_call>\n<function=g>\n</function>\n</tool_call>";
  expect_parts("qwen3-coder", call + "\n</think>\n\nC", {"R", "C", {"g{}"}}, true);
  expect_parts("qwen3-coder", call + "\nC </think>\nD </think>", {"R", "CD </think>", {"g{}"}}, true);
}

// --- ids

TEST(Families, AnIdOfAnotherFormIsReplaced) {
  expect_parts("mistral-id", R"([TOOL_CALLS]f[CALL_ID]abc[ARGS]{})", {"", "", {"f{}"}});
  expect_parts("mistral-id", R"([TOOL_CALLS]f[CALL_ID]123456789[ARGS]{}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{})",
               {"", "", {"f#123456789{}", "g{}"}});
}

// --- escapes and quotes

TEST(Families, EscapesInPythonTexts) {
  expect_parts("lfm2", R"(<|tool_call_start|>[f(s='\U0001F600 \ud83d\ude00 \x41 \u00e9')]<|tool_call_end|>)",
               {"", "", {R"(f{"s": "😀 😀 A é"})"}});
  expect_parts("lfm2", R"(<|tool_call_start|>[f(s='C:\Users\x \ud83d! \ud83d\u0041 \u12')]<|tool_call_end|>)",
               {"", "", {"f{\"s\": \"C:\\\\Users\\\\x \ufffd! \ufffdA \\\\u12\"}"}});
}

TEST(Families, GemmaMayForgetAQuote) {
  const std::string end = "<tool_call|>";
  expect_parts("gemma4", "<|tool_call>call:f{s:Paris, France<|\"|>,a:5}" + end,
               {"", "", {R"(f{"s": "Paris, France", "a": 5})"}});
  expect_parts("gemma4", "<|tool_call>call:f{s:https://a.b/(c)<|\"|>}" + end, {"", "", {R"-(f{"s": "https://a.b/(c)"})-"}});
  expect_parts("gemma4", "<|tool_call>call:f{s:Paris,a:5}" + end, {"", "", {R"(f{"s": "Paris", "a": 5})"}});
  expect_parts("gemma4", "<|tool_call>call:f{s:Paris}" + end, {"", "", {R"(f{"s": "Paris"})"}});
  expect_parts("gemma4", "<|tool_call>call:f{l:[one, two],s:x<|\"|>}" + end, {"", "", {R"(f{"l": ["one", "two"], "s": "x"})"}});
}

TEST(Families, BlocksOfCalls) {
  const FamilyReply wanted{"", "", {R"(f{"a": 1})", "g{}"}};
  expect_parts("gemma4", "<|tool_call>call:f{a:1}call:g{}<tool_call|>", wanted);
  expect_parts("glm", "<tool_call>\nf\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call><tool_call>\ng</tool_call>",
               wanted);
  expect_parts("tool-calls-list",
               "<tool_calls>[\n    {\"name\": \"f\", \"arguments\": {\"a\": 1}},\n    {\"name\": \"g\", \"arguments\": {}}\n]\n"
               "</tool_calls>",
               wanted);
}

TEST(Families, HarmonysHeadersAreNoContent) {
  expect_parts("gpt-oss", "<|channel|>final <|constrain|>json<|message|>{}<|return|>", {"", "{}", {}});
  expect_parts("gpt-oss", "<|channel|>commentary to=assistant<|channel|>analysis<|message|>x", {"x", "", {}});
}

TEST(Families, LongTextsStream) {
  ReplyParser parser(family_format("qwen3-coder", false), 1);
  ReplyPieces pieces;
  parser.push("<tool_call>\n<function=f>\n<parameter=s>\nline 1\nline", pieces);
  EXPECT_EQ(parser.calls().at(0).text, R"({"s": "line 1\nline)");
}

}  // namespace
}  // namespace uma::chat
