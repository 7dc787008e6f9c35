#include "chat/calls/call_grammar.h"

#include <format>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "chat/calls/nested_elements.h"
#include "chat/calls/tool_format.h"
#include "grammar/grammar.h"

namespace uma::chat {
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

// Whether the grammar accepts the whole text.
bool takes(const ReplyFormat& format, const ChatOptions& options, std::string_view text) {
  const auto gbnf = call_grammar(format, options);
  EXPECT_TRUE(gbnf) << (gbnf ? "" : gbnf.error().message);
  const auto grammar = grammar::Grammar::parse(gbnf.value());
  EXPECT_TRUE(grammar) << (grammar ? "" : grammar.error().message) << "\n" << *gbnf;
  grammar::GrammarReader reader(*grammar);
  return reader.can_end(reader.next(grammar::GrammarReader::kStart, text));
}

ReplyFormat of(std::string_view family) {
  return {.family = family_named(family)};
}

// The number of calls that the parser of the same notation finds.
std::size_t calls_in(ReplyFormat format, std::string_view text) {
  format.tools = std::make_shared<const Tools>(tools_of(forced().tools));
  ReplyParser parser(format, 1);
  ReplyPieces pieces;
  parser.push(text, pieces);
  parser.finish(pieces);
  EXPECT_EQ(pieces.content, "");
  return parser.calls().size();
}

struct Notation {
  std::string_view family;
  std::string_view one;   // A call of f.
  std::string_view both;  // Calls of f and g.
};

constexpr Notation kNotations[] = {
    {"hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": true}}\n</tool_call>",
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": true}}\n</tool_call>\n"
     "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>"},
    {"llama3", R"({"name": "f", "parameters": {"a": true}})",
     R"({"name": "f", "parameters": {"a": true}}; {"name": "g", "parameters": {}})"},
    {"mistral", R"([TOOL_CALLS][{"name": "f", "arguments": {"a": true}, "id": "a1b2c3d4e"}])",
     R"([TOOL_CALLS][{"name": "f", "arguments": {"a": true}, "id": "a1b2c3d4e"}, )"
     R"({"name": "g", "arguments": {}, "id": "a1b2c3d4f"}])"},
    {"deepseek",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": true}\n```<｜tool▁call▁end｜>"
     "<｜tool▁calls▁end｜>",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": true}\n```<｜tool▁call▁end｜>\n"
     "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
    {"hermes-arguments-first", "<tool_call>\n{\"arguments\": {\"a\": true}, \"name\": \"f\"}\n</tool_call>",
     "<tool_call>\n{\"arguments\": {\"a\": true}, \"name\": \"f\"}\n</tool_call>\n"
     "<tool_call>\n{\"arguments\": {}, \"name\": \"g\"}\n</tool_call>"},
    {"mistral-3", R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": true}, "id": "a1b2c3d4e"}])",
     R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": true}, "id": "a1b2c3d4e"}, )"
     R"({"name": "g", "arguments": {}, "id": "a1b2c3d4f"}])"},
    {"command-r-plus", "Action:\n```json\n[\n    {\"tool_name\": \"f\", \"parameters\": {\"a\": true}}\n]\n```",
     "Action:\n```json\n[\n    {\"tool_name\": \"f\", \"parameters\": {\"a\": true}},\n    {\"tool_name\": \"g\", "
     "\"parameters\": {}}\n]\n```"},
    {"functionary-3.2", "f\n{\"a\": true}", "f\n{\"a\": true}>>>g\n{}"},
    {"gigachat-3", "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"f\", \"arguments\": {\"a\": true}}",
     "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"f\", \"arguments\": {\"a\": true}}"
     "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"g\", \"arguments\": {}}"},
    {"kimi-k3",
     "<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\" "
     "index=\"1\"<|sep|><|open|>argument key=\"a\" type=\"boolean\"<|sep|>true"
     "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
     "<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\" "
     "index=\"1\"<|sep|><|open|>argument key=\"a\" type=\"boolean\"<|sep|>true"
     "<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool=\"g\" index=\"2\"<|sep|><|close|>call<|sep|><|close|>tools"
     "<|sep|><|close|>message<|sep|>"},
    {"mirothinker",
     "<use_mcp_tool>\n<server_name>tools</server_name>\n<tool_name>f</tool_name>\n<arguments>\n{\"a\": true}\n</arguments>\n"
     "</use_mcp_tool>",
     "<use_mcp_tool>\n<server_name>tools</server_name>\n<tool_name>f</tool_name>\n<arguments>\n{\"a\": true}\n</arguments>\n"
     "</use_mcp_tool>\n<use_mcp_tool>\n<server_name>tools</server_name>\n<tool_name>g</tool_name>\n<arguments>\n{}\n"
     "</arguments>\n</use_mcp_tool>"},
    {"xlam-2", R"([{"name": "f", "arguments": {"a": true}}])",
     R"([{"name": "f", "arguments": {"a": true}}, {"name": "g", "arguments": {}}])"},
};

TEST(CallGrammar, TakesTheCallsOfAFamilyAsItsReaderDoes) {
  for (const Notation& family : kNotations) {
    const ReplyFormat format = of(family.family);
    EXPECT_TRUE(takes(format, forced(), family.one)) << family.one;
    EXPECT_EQ(calls_in(format, family.one), 1u) << family.one;
    EXPECT_TRUE(takes(format, forced(), family.both)) << family.both;
    EXPECT_EQ(calls_in(format, family.both), 2u) << family.both;
  }
}

TEST(CallGrammar, TakesNothingElse) {
  for (const Notation& family : kNotations) {
    const ReplyFormat format = of(family.family);
    std::string wrong(family.one);
    wrong.replace(wrong.find("true"), 4, "1234");
    for (const std::string& text : {std::string(), std::string("no"), std::string(family.one) + "!", wrong}) {
      EXPECT_FALSE(takes(format, forced(), text)) << text;
    }
  }
}

TEST(CallGrammar, ANamedToolIsCalledOnce) {
  for (const Notation& family : kNotations) {
    const ReplyFormat format = of(family.family);
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

TEST(CallGrammar, OnlyAllowedToolsAreCalled) {
  for (const Notation& family : kNotations) {
    ChatOptions options = forced();
    options.allowed_tools = {"f"};
    EXPECT_TRUE(takes(of(family.family), options, family.one));
    EXPECT_FALSE(takes(of(family.family), options, family.both));
    options.allowed_tools = {"g"};
    EXPECT_FALSE(takes(of(family.family), options, family.one));
  }
}

TEST(CallGrammar, ReasoningMayComeFirst) {
  const std::string call(kNotations[0].one);
  ReplyFormat format = of("hermes");
  format.thoughts = {"<think>", "</think>"};
  EXPECT_TRUE(takes(format, forced(), call));
  EXPECT_TRUE(takes(format, forced(), "<think>1 < 2</think>\n\n" + call));
  EXPECT_FALSE(takes(format, forced(), "1 < 2</think>" + call)) << "it has not begun";
  format.begins_with_reasoning = true;
  EXPECT_TRUE(takes(format, forced(), "1 < 2\n</think>\n\n" + call));
  EXPECT_FALSE(takes(format, forced(), call)) << "it would be a thought";
  format.thoughts = {"[THINK]", "[/THINK]"};
  EXPECT_TRUE(takes(format, forced(), "[1, 2][/THINK]" + call));
}

TEST(CallGrammar, ArgumentsAreAnObjectWhateverTheirSchemaAllows) {
  ChatOptions options = forced();
  for (const std::string_view schema :
       {R"({})", R"({"type":["object","null"]})", R"({"type":["null","object"],"properties":{"a":{"type":"boolean"}}})",
        R"({"anyOf":[{"type":"object"},{"type":"null"}]})", R"({"description":"anything"})"}) {
    options.tools = std::format(R"([{{"type":"function","function":{{"name":"f","parameters":{}}}}}])", schema);
    const auto call = [](std::string_view arguments) {
      return std::format("<tool_call>\n{{\"name\": \"f\", \"arguments\": {}}}\n</tool_call>", arguments);
    };
    EXPECT_TRUE(takes(of("hermes"), options, call("{}"))) << schema;
    EXPECT_TRUE(takes(of("hermes"), options, call(R"({"a": true})"))) << schema;
    for (const std::string_view other : {"true", "null", "[]", "1", "\"a\""})
      EXPECT_FALSE(takes(of("hermes"), options, call(other))) << schema << ": " << other;
  }
}

TEST(CallGrammar, AnInvalidSchemaIsNamed) {
  ChatOptions options = forced();
  options.tools = R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","required":1}}}])";
  const auto refused = call_grammar(of("hermes"), options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::proto_field);
  EXPECT_TRUE(refused.error().message.starts_with("field \"tools[0].function.parameters\": tool \"f\": "))
      << refused.error().message;
}

// --- optional calls

// The part of the text behind a mark that the grammar accepts: "whole", "part" if more must follow, or nothing.
std::string begun(std::string_view family, const ChatOptions& options, std::string_view text) {
  const auto grammar = begun_call_grammar(of(family), options);
  EXPECT_TRUE(grammar) << (grammar ? "" : grammar.error().message);
  if (!grammar) return "";
  grammar::GrammarReader reader(*grammar);
  const auto place = reader.next(grammar::GrammarReader::kStart, text);
  if (place == grammar::GrammarReader::kNowhere) return "";
  return reader.can_end(place) ? "whole" : "part";
}

ChatOptions offered() {
  ChatOptions options = forced();
  options.tool_choice = ToolChoice::automatic;
  return options;
}

TEST(BegunCallGrammar, TakesACallAsModelsWriteIt) {
  for (const std::string_view text : {"\n{\"name\": \"f\", \"arguments\": {\"a\": true}}\n</tool_call>",
                                      "{\"name\":\"f\",\"arguments\":{\"a\":true}}</tool_call>",
                                      " {\"arguments\": {\"a\": false}, \"name\": \"f\"} </tool_call>",
                                      "\n{\"name\": \"g\", \"arguments\": {\"anything\": [1, {\"b\": null}]}}\n</tool_call>"}) {
    EXPECT_EQ(begun("hermes", offered(), "<tool_call>" + std::string(text)), "whole") << text;
    for (std::size_t i = 0; i < text.size(); ++i) {
      EXPECT_EQ(begun("hermes", offered(), "<tool_call>" + std::string(text.substr(0, i))), "part") << text.substr(0, i);
    }
    EXPECT_EQ(calls_in(of("hermes"), "<tool_call>" + std::string(text)), 1u) << text;
  }
}

TEST(BegunCallGrammar, TakesAllowedToolsOnly) {
  ChatOptions options = offered();
  options.allowed_tools = {"g"};
  EXPECT_EQ(begun("hermes", options, "<tool_call>\n{\"name\": \"g"), "part");
  EXPECT_EQ(begun("hermes", options, "<tool_call>\n{\"name\": \"f"), "");
  // In this family others that stand for none are beside them.
  const std::string mark = "Action:\n```json\n[\n    {\"tool_name\": \"";
  EXPECT_EQ(begun("command-r-plus", options, mark + "g"), "part");
  EXPECT_EQ(begun("command-r-plus", options, mark + "directly"), "part");
  EXPECT_EQ(begun("command-r-plus", options, mark + "f"), "");
}

TEST(BegunCallGrammar, AStrictToolThatMayNotBeCalledDemandsNothing) {
  ChatOptions options = offered();
  options.tools = R"([{"type": "function", "function": {"name": "f", "strict": true, "parameters": {}}},
                      {"type": "function", "function": {"name": "g", "parameters": {}}}])";
  EXPECT_TRUE(has_strict_tool(options));
  options.allowed_tools = {"g"};
  EXPECT_FALSE(has_strict_tool(options));
}

TEST(BegunCallGrammar, TakesNoOtherToolAndNoOtherArguments) {
  for (const std::string_view text :
       {"\n{\"name\": \"h", "\n{\"name\": \"f\", \"arguments\": {\"a\": 1", "\n{\"name\": \"f\", \"arguments\": {}",
        "\n{\"name\": \"f\", \"arguments\": \"", "no", "\n{\"name\": \"g\", \"arguments\": []"}) {
    EXPECT_EQ(begun("hermes", offered(), "<tool_call>" + std::string(text)), "") << text;
  }
}

TEST(BegunCallGrammar, OfEachFamily) {
  for (const auto& [family, mark, text] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"llama3", "<|python_tag|>", R"({"name": "f", "parameters": {"a": true}})"},
           {"llama3", "<|python_tag|>", R"({"type": "function", "name": "f", "parameters": {"a": true}})"},
           {"mistral", "[TOOL_CALLS]", R"( [{"name": "f", "arguments": {"a": true}, "id": "abc123def"}])"},
           {"mistral", "[TOOL_CALLS]", R"(f[ARGS]{"a": true})"},
           {"mistral", "[TOOL_CALLS]", R"(f[CALL_ID]abc123def[ARGS]{"a": true})"},
           {"deepseek", "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": true}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
           {"deepseek", "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": true}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"}}) {
    EXPECT_EQ(begun(family, offered(), mark + text), "whole") << text;
    EXPECT_EQ(calls_in(of(family), mark + text), 1u) << text;
    std::string wrong = text;
    wrong.replace(wrong.find("true"), 4, "1234");
    EXPECT_EQ(begun(family, offered(), mark + wrong), "") << wrong;
  }
}

TEST(BegunCallGrammar, AListHasOneCallWhereTheyAreNotParallel) {
  const std::string two = R"([TOOL_CALLS][{"name": "g", "arguments": {}}, {"name": "g", "arguments": {}}])";
  ChatOptions options = offered();
  EXPECT_EQ(begun("mistral", options, two), "whole");
  options.has_parallel_calls = false;
  EXPECT_EQ(begun("mistral", options, two), "");
}

TEST(BegunCallGrammar, AnInvalidSchemaCountsWhereItsToolIsStrict) {
  ChatOptions options = offered();
  options.tools = R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","required":1}}},)"
                  R"({"type":"function","function":{"name":"g","strict":true,"parameters":{"properties":{"b":{"const":1}}}}}])";
  EXPECT_EQ(begun("llama3", options, R"({"name": "f", "parameters": {"anything": 1}})"), "whole");
  EXPECT_EQ(begun("llama3", options, R"({"name": "g", "parameters": {"b": 1}})"), "whole");
  EXPECT_EQ(begun("llama3", options, R"({"name": "g", "parameters": {"b": 2)"), "");
  options.tools = R"([{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object","required":1}}}])";
  const auto refused = begun_call_grammar(of("hermes"), options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().field, "tools[0].function.parameters");
}

// One keyword that cannot be enforced says nothing about the rest of its schema, nor about other tools.
TEST(BegunCallGrammar, AKeywordIsLeftOutAlone) {
  for (const ToolChoice choice : {ToolChoice::automatic, ToolChoice::required}) {
    ChatOptions options = forced(choice);
    options.tools =
        R"([{"type":"function","function":{"name":"g"}},{"type":"function","function":{"name":"f","parameters":{"type":"object",)"
        R"("properties":{"a":{"type":"boolean","not":{"const":true}},"b":{"type":"array","items":{"type":"string"},"uniqueItems":true}},)"
        R"("required":["a"]}}}])";
    const std::vector<std::string> expected = {"tools[1].function.parameters#/properties/a/not",
                                               "tools[1].function.parameters#/properties/b/uniqueItems"};
    grammar::LeftOut left_out;
    grammar::LeftOut nothing(true);
    if (choice == ToolChoice::automatic) {
      ASSERT_TRUE(begun_call_grammar(of("hermes"), options, &left_out));
      EXPECT_EQ(begun("hermes", options, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":true}}</tool_call>"), "whole");
      EXPECT_EQ(begun("hermes", options, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1"), "");
      EXPECT_FALSE(begun_call_grammar(of("hermes"), options, &nothing)) << "strict";
    } else {
      ASSERT_TRUE(call_grammar(of("hermes"), options, {}, &left_out));
      const auto refused = call_grammar(of("hermes"), options, {}, &nothing);
      ASSERT_FALSE(refused) << "strict";
      EXPECT_EQ(refused.error().field, "tools[1].function.parameters");
      EXPECT_TRUE(refused.error().message.contains("#/properties/a/not")) << refused.error().message;
    }
    EXPECT_EQ(left_out.places(), expected);
  }
}

TEST(BegunCallGrammar, AWholeSchemaThatIsLetGoIsNamed) {
  ChatOptions options = offered();
  options.tools = R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","required":1}}}])";
  grammar::LeftOut left_out;
  ASSERT_TRUE(begun_call_grammar(of("hermes"), options, &left_out));
  EXPECT_EQ(left_out.places(), std::vector<std::string>{"tools[0].function.parameters#"});
  grammar::LeftOut nothing(true);
  EXPECT_FALSE(begun_call_grammar(of("hermes"), options, &nothing));
}

TEST(BegunCallGrammar, ManySchemasThatAreTooMuchTogetherAreLetGo) {
  ChatOptions options = offered();
  options.tools = "[";
  for (int i = 0; i < 100; ++i) {
    options.tools +=
        std::format(R"({}{{"type":"function","function":{{"name":"f{}","parameters":{{"type":"object","properties":{{)",
                    i == 0 ? "" : ",", i);
    for (int j = 0; j < 60; ++j)
      options.tools += std::format(R"({}"p{}_{}":{{"type":"array","items":{{"type":"string","minLength":{}}}}})",
                                   j == 0 ? "" : ",", i, j, 1 + j);
    options.tools += "}}}}";
  }
  options.tools += "]";
  EXPECT_EQ(begun("llama3", options, R"({"name": "f7", "parameters": {"anything": 1}})"), "whole");
}

// Every family: a call in its first form is taken by both grammars and read by the parser.
TEST(CallGrammar, TheFirstFormOfEveryFamily) {
  for (const Family& family : families()) {
    const CallForm& form = family.calls.front();
    std::string text = std::string(form.open) + std::string(form.call) + std::string(form.close);
    const ElementMarks& marks = family.element;
    std::string arguments = R"({"a": true})";
    if (form.style == ArgumentStyle::elements) {
      const std::string quote = marks.quotes_name ? "\"" : "";
      std::string attribute = marks.other_attribute.empty() ? "" : " " + std::string(marks.other_attribute);
      if (const std::size_t at = attribute.find("{type}"); at != std::string::npos) attribute.replace(at, 6, "boolean");
      arguments = std::format("{}{}a{}{}{}{}{}{}{}{}{}", marks.open, quote, quote, marks.name_end, attribute,
                              marks.before_value, marks.value_begin, marks.padding, family.python_words ? "True" : "true",
                              marks.padding, close_of(marks, "a"));
    } else if (form.style == ArgumentStyle::loose) {
      arguments = family.quote.empty() ? "(a=True)" : "{a:true}";
    }
    const auto put = [&](std::string_view place, std::string_view value) {
      if (const std::size_t at = text.find(place); at != std::string::npos) text.replace(at, place.size(), value);
    };
    std::erase(text, '\t');
    put("{function}", family.function);
    put("{name}", "f");
    put("{id}", family.ids == CallIds::named ? "functions.f:0" : family.ids == CallIds::nine ? "123456789" : "12");
    put("{line}", "\n");
    put("{index}", "1");
    put("{arguments}", arguments);
    EXPECT_TRUE(takes(of(family.name), forced(), text)) << family.name << ": " << text;
    EXPECT_EQ(begun(family.name, offered(), text), "whole") << family.name << ": " << text;
    EXPECT_EQ(calls_in(of(family.name), text), 1u) << family.name << ": " << text;
    EXPECT_FALSE(takes(of(family.name), forced(), text + "!")) << family.name;
  }
}

// As the templates write them, so that the call comes back as it was.
TEST(CallGrammar, ForcedCallsHaveTheBlanksAndWordsOfTheirTemplates) {
  ChatOptions options = forced();
  options.tools =
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"boolean"},)"
      R"("b":{"type":"array","items":{"type":"integer"}}},"required":["a","b"]}}}])";
  const auto hermes = [](std::string_view arguments) {
    return std::format("<tool_call>\n{{\"name\": \"f\", \"arguments\": {}}}\n</tool_call>", arguments);
  };
  EXPECT_TRUE(takes(of("hermes"), options, hermes(R"({"a": true, "b": [1, 2]})")));
  for (const std::string_view arguments :
       {R"({"a":true,"b":[1,2]})", R"({ "a": true, "b": [1, 2] })", R"({"a": true, "b": [1,2]})", "{\n\"a\": true, \"b\": []}"})
    EXPECT_FALSE(takes(of("hermes"), options, hermes(arguments))) << arguments;
  EXPECT_TRUE(takes(
      of("command"), options,
      "<|START_ACTION|>[\n    {\"tool_call_id\": \"12\", \"tool_name\": \"f\", \"parameters\": {\"a\": true, \"b\": []}}\n]"
      "<|END_ACTION|>"));
  EXPECT_TRUE(
      takes(of("glm-4.7"), options,
            "<tool_call>f<arg_key>a</arg_key><arg_value>true</arg_value><arg_key>b</arg_key><arg_value>[1, 2]</arg_value>"
            "</tool_call>"));
  EXPECT_TRUE(takes(of("glm"), options,
                    "\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>true</arg_value>\n<arg_key>b</arg_key>\n<arg_value>[1, 2]"
                    "</arg_value>\n</tool_call>"));
  const auto qwen = [](std::string_view word) {
    return std::format(
        "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n<parameter=b>\n[]\n</parameter>\n</function>\n"
        "</tool_call>",
        word);
  };
  EXPECT_TRUE(takes(of("qwen3-coder"), options, qwen("True")));
  EXPECT_FALSE(takes(of("qwen3-coder"), options, qwen("true")));
  EXPECT_TRUE(takes(of("step-3.5"), options, qwen("true")));
  EXPECT_FALSE(takes(of("step-3.5"), options, qwen("True")));
  options.tool_choice = ToolChoice::automatic;
  for (const std::string_view word : {"True", "true"}) {
    EXPECT_EQ(begun("qwen3-coder", options, qwen(word)), "whole") << word;
    EXPECT_EQ(calls_in(of("qwen3-coder"), qwen(word)), 1u) << word;
  }
}

// --- parameters

ChatOptions strict_tool(ToolChoice choice) {
  ChatOptions options;
  options.tools = R"([{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object","properties":{)"
                  R"("p":{"type":"string"},"m":{"$ref":"#/$defs/mode"},"n":{"type":"integer","minimum":1,"maximum":9},)"
                  R"("l":{"type":"array","items":{"type":"boolean"}},"o":{"type":"object","properties":{"k":{"const":"v"}},)"
                  R"("required":["k"],"additionalProperties":false}},"required":["p","m"],"additionalProperties":false,)"
                  R"("$defs":{"mode":{"type":"string","enum":["read","write"]}}}}}])";
  options.tool_names = {"f"};
  options.tool_choice = choice;
  options.has_parallel_calls = false;
  return options;
}

// Whether the grammars of forced and of begun calls accept the whole text.
bool takes_both(std::string_view family, std::string_view text) {
  const bool is_taken = begun(family, strict_tool(ToolChoice::automatic), text) == "whole";
  EXPECT_EQ(takes(of(family), strict_tool(ToolChoice::required), text), is_taken) << family << ": " << text;
  return is_taken;
}

TEST(CallGrammar, ElementsComeInAnyOrderAndFollowTheirSchema) {
  const auto call = [](std::string_view elements) {
    return std::format("<tool_call>\n<function=f>\n{}</function>\n</tool_call>", elements);
  };
  const std::string p = "<parameter=p>\na\n</parameter>\n";
  const std::string m = "<parameter=m>\nread\n</parameter>\n";
  const std::string n = "<parameter=n>\n5\n</parameter>\n";
  for (const std::string& elements : {p + m, m + p, p + n + m, n + m + p, m + p + n})
    EXPECT_TRUE(takes_both("qwen3-coder", call(elements))) << elements;
  for (const std::string& elements : {std::string(), p, n + m, p + m + m, p + m + "<parameter=q>\n5\n</parameter>\n",
                                      p + "<parameter=m>\nbe\n</parameter>\n", p + m + "<parameter=n>\n10\n</parameter>\n"})
    EXPECT_FALSE(takes_both("qwen3-coder", call(elements))) << elements;
}

TEST(CallGrammar, LooseArgumentsFollowTheirSchema) {
  const auto python = [](std::string_view arguments) {
    return std::format("<|tool_call_start|>[f({})]<|tool_call_end|>", arguments);
  };
  for (const std::string_view arguments : {"p='a', m='read'", "m=\"write\", p=\"it's\", n=9",
                                           "p='a', l=[True, false], m='read', o={'k': 'v'}", "p='', m='read', l=[]"})
    EXPECT_TRUE(takes_both("lfm2", python(arguments))) << arguments;
  for (const std::string_view arguments :
       {"", "p='a'", "p='a', m='be'", "p=1, m='read'", "p='a', m='read', n=10", "p='a', m='read', q=1",
        "p='a', m='read', l=[1]", "p='a', m='read', o={}", "p='a', m='read', o={'k': 'w'}", "p='a' m='read'"})
    EXPECT_FALSE(takes_both("lfm2", python(arguments))) << arguments;
  const auto gemma = [](std::string_view arguments) { return std::format("<|tool_call>call:f{{{}}}<tool_call|>", arguments); };
  EXPECT_TRUE(takes_both("gemma4", gemma("m:<|\"|>read<|\"|>,p:<|\"|>it's, {a}<|\"|>,l:[true],o:{k:<|\"|>v<|\"|>}")));
  EXPECT_FALSE(takes_both("gemma4", gemma("m:<|\"|>be<|\"|>,p:<|\"|>a<|\"|>")));
}

ChatOptions with_schema(std::string_view schema, ToolChoice choice) {
  ChatOptions options;
  options.tools = std::format(R"([{{"type":"function","function":{{"name":"f","parameters":{}}}}}])", schema);
  options.tool_names = {"f"};
  options.tool_choice = choice;
  return options;
}

TEST(CallGrammar, AnArgumentsTypeIsItsAttribute) {
  const auto call = [](std::string_view key, std::string_view type, std::string_view value) {
    return std::format("<|open|>argument key=\"{}\" type=\"{}\"<|sep|>{}<|close|>argument<|sep|>", key, type, value);
  };
  const auto with = [](const std::string& arguments) {
    return std::format(
        "<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\" "
        "index=\"1\"<|sep|>{}<|close|>call<|sep|><|close|>tools<|sep|>"
        "<|close|>message<|sep|>",
        arguments);
  };
  const std::string both = call("p", "string", "<|close|> a\n") + call("m", "string", "read");
  EXPECT_TRUE(takes_both("kimi-k3", with(both)));
  for (const std::string& more :
       {call("n", "number", "5"), call("l", "array", "[true, false]"), call("o", "object", R"({"k": "v"})")})
    EXPECT_TRUE(takes_both("kimi-k3", with(both + more))) << more;
  for (const std::string& more : {call("n", "number", "10"), call("n", "string", "5"), call("n", "integer", "5"),
                                  call("l", "array", "[1]"), call("o", "object", "{}"), call("q", "number", "1")})
    EXPECT_FALSE(takes_both("kimi-k3", with(both + more))) << more;
  EXPECT_FALSE(takes_both("kimi-k3", with(call("p", "string", "a") + call("m", "string", "be"))));
}

TEST(CallGrammar, AnElementThatMayBeATextMayBeItsOtherTypes) {
  ChatOptions options = forced();
  options.tools = R"([{"type":"function","function":{"name":"f","parameters":{"properties":{"u":{"description":"any"},)"
                  R"("m":{"type":["string","integer"]},"t":{"type":"string","enum":["a",1]},)"
                  R"("v":{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"boolean"}}]},"e":{"enum":["a",1]}}}}}])";
  const auto takes_element = [&](const std::string& family, const std::string& key, const std::string& type,
                                 const std::string& value) {
    const bool is_kimi = family == "kimi-k3";
    const std::string type_word = is_kimi ? "type=\"" + type + "\"" : type == "string" ? "string=\"true\"" : "string=\"false\"";
    const std::string text =
        is_kimi ? std::format(
                      "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"{}\" "
                      "{}<|sep|>{}<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
                      key, type_word, value)
                : std::format(
                      "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"{}\" "
                      "{}>{}</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
                      key, type_word, value);
    options.tool_choice = ToolChoice::automatic;
    return begun(family, options, text) == "whole";
  };
  for (const std::string family : {"kimi-k3", "deepseek-v4"}) {
    for (const auto& [key, type, value] :
         std::vector<std::tuple<std::string, std::string, std::string>>{{"u", "string", "x"},
                                                                        {"u", "number", "1.5"},
                                                                        {"u", "boolean", "true"},
                                                                        {"u", "null", "null"},
                                                                        {"u", "array", "[1]"},
                                                                        {"u", "object", R"({"a": 1})"},
                                                                        {"m", "string", "x"},
                                                                        {"m", "number", "5"},
                                                                        {"v", "string", "x"},
                                                                        {"v", "array", "[true]"},
                                                                        {"e", "string", "a"},
                                                                        {"e", "number", "1"}})
      EXPECT_TRUE(takes_element(family, key, type, value)) << family << " " << key << " " << value;
    for (const auto& [key, type, value] :
         std::vector<std::tuple<std::string, std::string, std::string>>{{"u", "number", "x"},
                                                                        {"m", "number", "1.5"},
                                                                        {"m", "array", "[]"},
                                                                        {"v", "array", "[1]"},
                                                                        {"e", "number", "2"},
                                                                        {"t", "number", "1"},
                                                                        {"e", "string", "1"},
                                                                        {"u", "object", "\"x\""}})
      EXPECT_FALSE(takes_element(family, key, type, value)) << family << " " << key << " " << value;
  }
}

TEST(CallGrammar, AMarkAtTheEndOfThePromptIsNotWrittenAgain) {
  const std::string mark = "<|open|>response<|sep|>";
  const std::string rest =
      "<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"g\" index=\"1\"<|sep|><|close|>call<|sep|>"
      "<|close|>tools<|sep|><|close|>message<|sep|>";
  const auto takes_behind = [&](std::string_view prompt, std::string_view text) {
    const auto grammar = grammar::Grammar::parse(call_grammar(of("kimi-k3"), forced(), prompt).value());
    EXPECT_TRUE(grammar);
    grammar::GrammarReader reader(*grammar);
    return reader.can_end(reader.next(grammar::GrammarReader::kStart, text));
  };
  EXPECT_TRUE(takes_behind("?<|open|>message role=\"assistant\"<|sep|>" + mark, rest));
  EXPECT_FALSE(takes_behind("?<|open|>message role=\"assistant\"<|sep|>" + mark, mark + rest));
  EXPECT_TRUE(takes_behind("?", mark + rest));
  EXPECT_EQ(calls_in(of("kimi-k3"), rest), 1u);
}

TEST(BegunCallGrammar, AnyTextIsNoLongerThanTheReaderTakes) {
  const auto call = [](const std::string& any) { return "<|channel|>" + any + "to=functions.g<|message|>{}<|call|>"; };
  std::string wide;
  for (int i = 0; i < 16; ++i) wide += "语";
  EXPECT_EQ(begun("gpt-oss", offered(), call(wide)), "whole");
  EXPECT_EQ(calls_in(of("gpt-oss"), call(wide)), 1u);
  EXPECT_EQ(begun("gpt-oss", offered(), call(wide + "语")), "");
  EXPECT_EQ(begun("gpt-oss", offered(), call(std::string(60, 'a') + " ")), "whole");
}

TEST(BegunCallGrammar, ACallThatStandsForNoneIsTaken) {
  const std::string none = "Action:\n```json\n[{\"tool_name\": \"directly_answer\", \"parameters\": {}}]\n```";
  EXPECT_EQ(begun("command-r-plus", offered(), none), "whole");
  EXPECT_FALSE(takes(of("command-r-plus"), forced(), none));
}

TEST(BegunCallGrammar, PythonMayBeAnyText) {
  ChatOptions options = offered();
  EXPECT_EQ(begun("functionary-3.2", options, "python\nx"), "");
  options.tools = R"([{"type":"function","function":{"name":"python"}}])";
  EXPECT_EQ(begun("functionary-3.2", options, "python\nprint(\"a\")\n>>> b"), "whole");
  EXPECT_EQ(begun("functionary-3.2", options, ">>>python\nx"), "whole");
  EXPECT_EQ(begun("functionary-3.2", options, "python\n{k: v for k, v in x}"), "whole");
  EXPECT_EQ(begun("functionary-3.2", options, "python\n{\"code\": \"x\"}"), "whole");
  EXPECT_EQ(begun("functionary-3.2", options, "python\n{\"code\": x"), "");
}

// --- elements within elements

TEST(CallGrammar, ElementsOfElementsFollowTheirSchema) {
  const std::string n = "]<]minimax[>[";
  const auto element = [&](std::string_view name, const std::string& value) {
    return std::format("{0}<{1}>{2}{0}</{1}>", n, name, value);
  };
  const auto call = [&](const std::string& arguments) {
    return std::format("{0}<tool_call>\n{0}<invoke name=\"f\">{1}{0}</invoke>\n{0}</tool_call>", n, arguments);
  };
  const std::string both = element("p", "a [1] ]<] b") + element("m", "read");
  EXPECT_TRUE(takes_both("minimax-m3", call(both)));
  const std::string one = element("item", "true"), two = one + element("item", "false");
  for (const std::string& more : {element("l", ""), element("l", one), element("l", two), element("o", element("k", "v"))})
    EXPECT_TRUE(takes_both("minimax-m3", call(both + more))) << more;
  for (const std::string& more :
       {element("l", "[true]"), element("l", element("item", "1")), element("l", element("k", "true")), element("o", ""),
        element("o", element("k", "w")), element("o", element("k", "v") + one), element("n", "10"),
        element("n", element("item", "1"))})
    EXPECT_FALSE(takes_both("minimax-m3", call(both + more))) << more;
  const ChatOptions automatic = strict_tool(ToolChoice::automatic);
  EXPECT_EQ(begun("minimax-m3", automatic, call(both + "\n" + element("l", "\n" + one + "\n  " + one + "\n"))), "whole");
}

TEST(CallGrammar, ElementsWhoseSchemaSaysNothingAreAny) {
  const std::string n = "]<]minimax[>[";
  const auto element = [&](std::string_view name, const std::string& value) {
    return std::format("{0}<{1}>{2}{0}</{1}>", n, name, value);
  };
  const auto call = [&](const std::string& arguments) {
    return std::format("{0}<tool_call>\n{0}<invoke name=\"f\">{1}{0}</invoke>\n{0}</tool_call>", n, arguments);
  };
  const ChatOptions options =
      with_schema(R"({"type":"object","properties":{"o":{"type":"object"},"l":{"type":"array"}}})", ToolChoice::required);
  const std::string deep = element("x", element("y", element("item", "1") + element("item", "a b")) + element("z", ""));
  EXPECT_TRUE(takes(of("minimax-m3"), options, call(element("o", deep))));
  EXPECT_TRUE(takes(of("minimax-m3"), options, call(element("l", element("item", deep) + element("item", "")))));
  EXPECT_FALSE(takes(of("minimax-m3"), options, call(element("o", "text"))));
  EXPECT_FALSE(takes(of("minimax-m3"), options, call(element("l", deep))));
  const ChatOptions unknown = with_schema(R"({"type":"object"})", ToolChoice::automatic);
  EXPECT_EQ(begun("minimax-m3", unknown, call(element("o", deep) + element("a", "1"))), "whole");
}

// --- schemas that are made to be too large

std::string repeated(int count, std::string_view element) {
  std::string all;
  for (int i = 0; i < count; ++i) all += (i == 0 ? "" : ",") + std::string(element);
  return all;
}

TEST(CallGrammar, ASchemaThatRefersToItselfOftenHasFewRules) {
  const std::string itself = repeated(8, R"({"$ref":"#/$defs/t"})");
  const std::string schema = std::format(
      R"({{"type":"object","properties":{{"a":{{"$ref":"#/$defs/t"}},"b":{{"$ref":"#/$defs/t"}}}},"$defs":{{"t":{{"anyOf":[{},)"
      R"({{"type":"integer"}},{{"type":"object","properties":{{"c":{{"$ref":"#/$defs/t"}}}}}}]}}}}}})",
      itself);
  for (const std::string_view family : {"lfm2", "gemma4", "qwen3-coder", "hermes", "minimax-m3"}) {
    const auto gbnf = call_grammar(of(family), with_schema(schema, ToolChoice::required));
    ASSERT_TRUE(gbnf) << gbnf.error().message;
    EXPECT_LT(gbnf->size(), 10'000u) << family;
    EXPECT_NE(begun_call_grammar(of(family), with_schema(schema, ToolChoice::automatic)).value(), nullptr) << family;
  }
  const auto call = [](std::string_view value) { return std::format("<|tool_call_start|>[f(a={})]<|tool_call_end|>", value); };
  const ChatOptions options = with_schema(schema, ToolChoice::required);
  EXPECT_TRUE(takes(of("lfm2"), options, call("1")));
  EXPECT_FALSE(takes(of("lfm2"), options, call("'1'")));
  // Deeper than any limit of nesting that a schema without references has.
  std::string deep = "1", wrong = "'1'";
  for (int i = 0; i < 40; ++i) {
    deep = std::format("{{'c': {}}}", deep);
    wrong = std::format("{{'c': {}}}", wrong);
  }
  EXPECT_TRUE(takes(of("lfm2"), options, call(deep)));
  EXPECT_FALSE(takes(of("lfm2"), options, call(wrong)));
}

// It would take minutes if each property's reference were followed again without a limit.
TEST(BegunCallGrammar, ManyReferencesToALongOneTakeBoundedTime) {
  for (const std::size_t bytes : {std::size_t{1000}, std::size_t{1'000'000}}) {
    const std::string name(bytes, 'x');
    const std::string refers = R"(": {"$ref": "#/)" + name + R"("}, )";
    std::string schema = R"({"type": "object", "r)" + refers + "\"" + name + refers + R"("properties": {)";
    for (int i = 0; i < 20'000; ++i) schema += std::format(R"({}"p{}": {{"$ref": "#/r"}})", i == 0 ? "" : ", ", i);
    ChatOptions options = offered();
    options.tools = R"([{"type": "function", "function": {"name": "f", "parameters": )" + schema + "}}}}]";
    for (const std::string_view family : {"minimax-m3", "kimi-k3", "llama4", "qwen3-coder"})
      EXPECT_TRUE(begun_call_grammar(of(family), options)) << family;
  }
}

TEST(CallGrammar, ManyElementsOfOneLargeSchemaAreRefusedOrShareItsRules) {
  std::string properties, inner;
  for (int i = 0; i < 2000; ++i) properties += std::format(R"({}"p{}":{{"$ref":"#/$defs/o"}})", i == 0 ? "" : ",", i);
  for (int i = 0; i < 1000; ++i)
    inner += std::format(R"({}"k{}":{{"type":"array","items":{{"type":"integer"}}}})", i == 0 ? "" : ",", i);
  const std::string schema = std::format(
      R"({{"type":"object","properties":{{{}}},"$defs":{{"o":{{"type":"object","properties":{{{}}}}}}}}})", properties, inner);
  const auto forced_grammar = call_grammar(of("minimax-m3"), with_schema(schema, ToolChoice::required));
  EXPECT_TRUE(!forced_grammar || forced_grammar->size() < 1'000'000);
  EXPECT_TRUE(begun_call_grammar(of("minimax-m3"), with_schema(schema, ToolChoice::automatic)).has_value());
  EXPECT_LT(tools_of(with_schema(schema, ToolChoice::required).tools).at("f").size(), 4000u);
}

TEST(CallGrammar, AValueHasEachOfItsTypesOnce) {
  const std::string schema = std::format(
      R"({{"type":"object","properties":{{"a":{{"type":["string",{}],"properties":{{"b":{{"type":"string"}}}}}}}}}})",
      repeated(2000, R"("object")"));
  const auto grammar = begun_call_grammar(of("gemma4"), with_schema(schema, ToolChoice::automatic));
  ASSERT_TRUE(grammar);
  ASSERT_NE(*grammar, nullptr);
  EXPECT_LT((*grammar)->bytes(), 100'000u);
}

TEST(CallGrammar, AListOfValuesThatIsUsedTooOftenIsRefused) {
  std::string properties;
  for (int i = 0; i < 300; ++i) properties += std::format(R"({}"p{}":{{"$ref":"#/$defs/v"}})", i == 0 ? "" : ",", i);
  std::string values;
  for (int i = 0; i < 1000; ++i) values += std::format(R"({}"value {}")", i == 0 ? "" : ",", i);
  const std::string schema =
      std::format(R"({{"type":"object","properties":{{{}}},"$defs":{{"v":{{"enum":[{}]}}}}}})", properties, values);
  const auto refused = call_grammar(of("qwen3-coder"), with_schema(schema, ToolChoice::required));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::proto_field);
  EXPECT_EQ(refused.error().message,
            "field \"tools[0].function.parameters\": tool \"f\": the tools up to this one need a grammar of more than 262144 "
            "bytes: send fewer tools, or smaller schemas");
  EXPECT_EQ(begun("qwen3-coder", with_schema(schema, ToolChoice::automatic),
                  "<tool_call>\n<function=f>\n<parameter=p7>\nanything\n</parameter>\n</function>\n</tool_call>"),
            "whole")
      << "without its schema";
}

TEST(CallGrammar, APropertyRefersToAnyPartOfItsSchema) {
  const ChatOptions options =
      with_schema(R"({"type":"object","properties":{"a":{"type":"object","properties":{"n":{"type":"integer"}}},)"
                  R"("b":{"$ref":"#/properties/a"},"c":{"type":"object","properties":{"whole":{"$ref":"#"}}}}})",
                  ToolChoice::required);
  const auto call = [](std::string_view name, std::string_view value) {
    return std::format("<tool_call>\n<function=f>\n<parameter={0}>\n{1}\n</parameter>\n</function>\n</tool_call>", name, value);
  };
  EXPECT_TRUE(takes(of("qwen3-coder"), options, call("b", R"({"n": 1})")));
  EXPECT_FALSE(takes(of("qwen3-coder"), options, call("b", R"({"n": "1"})")));
  EXPECT_TRUE(takes(of("qwen3-coder"), options, call("c", R"({"whole": {"b": {"n": 1}}})")));
  EXPECT_FALSE(takes(of("qwen3-coder"), options, call("c", R"({"whole": {"b": {"n": []}}})")));
}

TEST(CallGrammar, ManyRequiredParametersKeepTheirOrder) {
  ChatOptions options = forced();
  std::string properties, required, in_order, reversed;
  for (int i = 0; i < 40; ++i) {
    properties += std::format(R"({}"p{}":{{"type":"integer"}})", i == 0 ? "" : ",", i);
    required += std::format(R"({}"p{}")", i == 0 ? "" : ",", i);
    const std::string element = std::format("<parameter=p{}>\n1\n</parameter>\n", i);
    in_order += element;
    reversed = element + reversed;
  }
  options.tools = std::format(
      R"([{{"type":"function","function":{{"name":"f","parameters":{{"type":"object","properties":{{{}}},"required":[{}]}}}}}}])",
      properties, required);
  const auto call = [](std::string_view elements) {
    return std::format("<tool_call>\n<function=f>\n{}</function>\n</tool_call>", elements);
  };
  EXPECT_TRUE(takes(of("qwen3-coder"), options, call(in_order)));
  EXPECT_FALSE(takes(of("qwen3-coder"), options, call(reversed)));
}

TEST(CallGrammar, IdsHaveTheFormOfTheFamily) {
  EXPECT_EQ(begun("mistral-id", offered(), R"([TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": true})"), "whole");
  EXPECT_EQ(begun("mistral-id", offered(), R"([TOOL_CALLS]f[CALL_ID]1234[)"), "");
}

TEST(BegunCallGrammar, TakesTheWhitespaceThatTheReaderSkips) {
  for (const auto& [family, text] : std::vector<std::pair<std::string, std::string>>{
           {"tool-calls-list", "<tool_calls>\n[\n    {\"name\": \"f\", \"arguments\": {\"a\": true}}\n]\n</tool_calls>"},
           {"glm", "<tool_call>\nf\n<arg_key>a</arg_key>\n<arg_value>true</arg_value>\n</tool_call>"},
           {"lfm2", "<|tool_call_start|>[{\"name\": \"f\", \"arguments\": {\"a\": true}}]<|tool_call_end|>"}}) {
    EXPECT_EQ(begun(family, offered(), text), "whole") << text;
    EXPECT_EQ(calls_in(of(family), text), 1u) << text;
  }
}

// As coding agents send them.
TEST(BegunCallGrammar, ManyToolsOfEveryFamily) {
  ChatOptions options = offered();
  options.tools = "[";
  for (int i = 0; i < 250; ++i) {
    options.tools +=
        std::format(R"({}{{"type":"function","function":{{"name":"f{}","parameters":{{"type":"object","properties":{{)",
                    i == 0 ? "" : ",", i);
    for (int j = 0; j < 8; ++j)
      options.tools += std::format(R"({}"p{}":{{"type":"{}"}})", j == 0 ? "" : ",", j, j % 3 == 0 ? "integer" : "string");
    options.tools += "}}}}";
  }
  options.tools += "]";
  for (const Family& family : families()) {
    const auto grammar = begun_call_grammar(of(family.name), options);
    ASSERT_TRUE(grammar) << family.name << ": a request is not refused for its number of tools";
    const bool has_many_forms =
        family.name == "gpt-oss" || family.name.starts_with("mistral") || family.name.starts_with("deepseek");
    EXPECT_TRUE(*grammar != nullptr || has_many_forms) << family.name;
  }
}

}  // namespace
}  // namespace uma::chat
