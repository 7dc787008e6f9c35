// Replies of each family of models, as docs/MODELS.md describes them: thoughts and content, one call, several, and content
// before a call, in pieces of every size.
#include "chat/family.h"

#include <format>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

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

FamilyReply parse_reply(const ReplyFormat& format, std::string_view text, std::size_t step) {
  ReplyParser parser(format, 1);
  std::string content;
  ReplyPieces pieces;
  while (!text.empty()) {
    std::size_t size = 0;
    for (std::size_t i = 0; i < step && size < text.size(); ++i) {
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

void expect_parts(std::string_view family, std::string_view text, const FamilyReply& wanted,
                  bool begins_with_thoughts = false) {
  const ReplyFormat format = family_format(family, begins_with_thoughts);
  for (const std::size_t step :
       {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{5}, std::size_t{17}, text.size() + 1})
    EXPECT_EQ(parse_reply(format, text, step), wanted) << family << ", in pieces of " << step << ": " << text;
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
  EXPECT_EQ(name("<minimax:tool_call><invoke"), "minimax");
  EXPECT_EQ(name("<｜DSML｜function_calls>"), "deepseek-dsml");
  EXPECT_EQ(name("[TOOL_CALLS][CALL_ID][ARGS]"), "mistral-id");
  EXPECT_EQ(name("[TOOL_CALLS][ARGS]"), "mistral-args");
  EXPECT_EQ(name("[TOOL_CALLS]"), "mistral");
  EXPECT_EQ(name("<|tool_calls_section_begin|><|tool_call_argument_begin|>"), "kimi");
  EXPECT_EQ(name("<｜tool▁calls▁begin｜>function<｜tool▁sep｜>```json"), "deepseek");
  EXPECT_EQ(name("<｜tool▁calls▁begin｜><｜tool▁sep｜>"), "deepseek-3.1");
  EXPECT_EQ(name("<|turn>model<|tool_call>call:"), "gemma4");
  EXPECT_EQ(name("<tool_call>\n{\"name\""), "hermes");
  EXPECT_EQ(name("<|python_tag|>"), "llama3");
  EXPECT_EQ(name("nothing of it"), "none");
  EXPECT_EQ(family_of("<tool_call>"), nullptr) << "a template that takes no tools";
}

TEST(Families, HaveNamesOfTheirOwn) {
  for (const Family& family : families()) EXPECT_EQ(family_named(family.name), &family);
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
  expect_parts("gpt-oss", "<|channel|>commentary to=assistant<|channel|>analysis<|message|>x",
               {"x", "<|channel|>commentary to=assistant", {}});
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
  expect_parts("tool-calls-list", "<answer>\nC\n</answer><tool_calls>[" + two + "]</tool_calls>", wanted);
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

TEST(Families, LongTextsStream) {
  ReplyParser parser(family_format("qwen3-coder", false), 1);
  ReplyPieces pieces;
  parser.push("<tool_call>\n<function=f>\n<parameter=s>\nline 1\nline", pieces);
  EXPECT_EQ(parser.calls().at(0).text, R"({"s": "line 1\nline)");
}

}  // namespace
}  // namespace uma::chat
