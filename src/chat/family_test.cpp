// Replies of each family of models, as docs/MODELS.md describes them: thoughts and content, one call, several, and content
// before a call, in pieces of every size.
#include "chat/family.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "chat/calls/call_pattern.h"
#include "chat/calls/tool_format.h"
#include "chat/family_test_support.h"
#include "chat/reply/reply_parser.h"

namespace uma::chat {
namespace {

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
