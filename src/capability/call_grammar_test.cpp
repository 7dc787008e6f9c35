#include "capability/call_grammar.h"

#include <gtest/gtest.h>

#include "llm/grammar.h"

namespace uma::capability {
namespace {

ChatOptions forced(ToolChoice choice = ToolChoice::required) {
  ChatOptions options;
  options.tools =
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"boolean"}},)"
      R"("required":["a"],"additionalProperties":false}}},{"type":"function","function":{"name":"g"}}])";
  options.tool_names = {"f", "g"};
  options.tool_choice = choice;
  options.tool_name = choice == ToolChoice::named ? "f" : "";
  return options;
}

// Whether the grammar takes the whole text.
bool takes(const ReplyFormat& format, const ChatOptions& options, std::string_view text) {
  const auto gbnf = call_grammar(format, options);
  EXPECT_TRUE(gbnf) << (gbnf ? "" : gbnf.error().message);
  const auto grammar = llm::Grammar::parse(gbnf.value());
  EXPECT_TRUE(grammar) << (grammar ? "" : grammar.error().message) << "\n" << *gbnf;
  llm::GrammarReader reader(*grammar);
  return reader.can_end(reader.next(llm::GrammarReader::kStart, text));
}

// What a reader of the same notation makes of it.
std::size_t calls_in(ReplyFormat format, std::string_view text) {
  format.tools = {"f", "g"};
  ReplyParser parser(format, 1);
  ReplyPieces pieces;
  parser.push(text, pieces);
  parser.finish(pieces);
  EXPECT_EQ(pieces.content, "");
  return parser.calls().size();
}

struct Family {
  CallSyntax syntax;
  std::string_view one;   // of f
  std::string_view both;  // f and g
};

constexpr Family kFamilies[] = {
    {CallSyntax::tagged, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": true}}\n</tool_call>",
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": true}}\n</tool_call>\n"
     "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>"},
    {CallSyntax::llama3, R"({"name": "f", "parameters": {"a": true}})",
     R"({"name": "f", "parameters": {"a": true}}; {"name": "g", "parameters": {}})"},
    {CallSyntax::mistral, R"([TOOL_CALLS][{"name": "f", "arguments": {"a": true}}])",
     R"([TOOL_CALLS][{"name": "f", "arguments": {"a": true}}, {"name": "g", "arguments": {}}])"},
    {CallSyntax::deepseek,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": true}\n```<｜tool▁call▁end｜>"
     "<｜tool▁calls▁end｜>",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": true}\n```<｜tool▁call▁end｜>\n"
     "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
};

TEST(CallGrammar, TakesTheCallsOfAFamilyAsItsReaderDoes) {
  for (const Family& family : kFamilies) {
    const ReplyFormat format{.calls = family.syntax};
    EXPECT_TRUE(takes(format, forced(), family.one)) << family.one;
    EXPECT_EQ(calls_in(format, family.one), 1u) << family.one;
    EXPECT_TRUE(takes(format, forced(), family.both)) << family.both;
    EXPECT_EQ(calls_in(format, family.both), 2u) << family.both;
  }
}

TEST(CallGrammar, TakesNothingElse) {
  for (const Family& family : kFamilies) {
    const ReplyFormat format{.calls = family.syntax};
    std::string wrong(family.one);
    wrong.replace(wrong.find("true"), 4, "1234");
    for (const std::string& text : {std::string(), std::string("no"), std::string(family.one) + "!", wrong}) {
      EXPECT_FALSE(takes(format, forced(), text)) << text;
    }
  }
}

TEST(CallGrammar, ANamedToolIsCalledOnce) {
  for (const Family& family : kFamilies) {
    const ReplyFormat format{.calls = family.syntax};
    EXPECT_TRUE(takes(format, forced(ToolChoice::named), family.one));
    EXPECT_FALSE(takes(format, forced(ToolChoice::named), family.both));
    ChatOptions one = forced();
    one.has_parallel_calls = false;
    EXPECT_FALSE(takes(format, one, family.both));
    one.tool_choice = ToolChoice::named;
    one.tool_name = "g";
    EXPECT_FALSE(takes(format, one, family.one)) << "another tool";
  }
}

TEST(CallGrammar, AModelThatThinksMayThinkFirst) {
  const std::string call(kFamilies[0].one);
  ReplyFormat format{.calls = CallSyntax::tagged, .think_open = "<think>", .think_close = "</think>"};
  EXPECT_TRUE(takes(format, forced(), call));
  EXPECT_TRUE(takes(format, forced(), "<think>1 < 2</think>\n\n" + call));
  EXPECT_FALSE(takes(format, forced(), "1 < 2</think>" + call)) << "it has not begun";
  format.begins_thinking = true;
  EXPECT_TRUE(takes(format, forced(), "1 < 2\n</think>\n\n" + call));
  EXPECT_FALSE(takes(format, forced(), call)) << "it would be a thought";
  format.think_open = "[THINK]";
  format.think_close = "[/THINK]";
  EXPECT_TRUE(takes(format, forced(), "[1, 2][/THINK]" + call));
}

TEST(CallGrammar, ASchemaThatIsNoGrammarIsNamed) {
  ChatOptions options = forced();
  options.tools = R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","not":{}}}}])";
  const auto refused = call_grammar({.calls = CallSyntax::tagged}, options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::proto_field);
  EXPECT_TRUE(refused.error().message.starts_with("field \"tools[0].function.parameters\": ")) << refused.error().message;
}

}  // namespace
}  // namespace uma::capability
