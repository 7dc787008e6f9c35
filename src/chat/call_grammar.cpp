#include "chat/call_grammar.h"

#include <cstddef>
#include <format>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "grammar/json_schema.h"
#include "json/field_reader.h"

namespace uma::chat {
namespace {

constexpr int kGrammarCallsMax = 16;  // Calls of one reply.

// The text around the names and arguments of calls.
struct Notation {
  std::string_view begin{};
  std::string_view before_name{};
  std::string_view before_arguments{};
  std::string_view after_arguments{};
  std::string_view between{};
  std::string_view end{};
};

Notation notation_of(CallSyntax syntax) {
  switch (syntax) {
    case CallSyntax::llama3:
      return {
          .before_name = "{\"name\": \"", .before_arguments = "\", \"parameters\": ", .after_arguments = "}", .between = "; "};
    case CallSyntax::mistral:
      return {.begin = "[TOOL_CALLS][",
              .before_name = "{\"name\": \"",
              .before_arguments = "\", \"arguments\": ",
              .after_arguments = "}",
              .between = ", ",
              .end = "]"};
    case CallSyntax::deepseek:
      return {.begin = "<｜tool▁calls▁begin｜>",
              .before_name = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
              .before_arguments = "\n```json\n",
              .after_arguments = "\n```<｜tool▁call▁end｜>",
              .between = "\n",
              .end = "<｜tool▁calls▁end｜>"};
    case CallSyntax::tagged:
    case CallSyntax::none:
      break;
  }
  return {.before_name = "<tool_call>\n{\"name\": \"",
          .before_arguments = "\", \"arguments\": ",
          .after_arguments = "}\n</tool_call>",
          .between = "\n"};
}

std::string literal(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '\n') {
      quoted += "\\n";
    } else {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted += c;
    }
  }
  return quoted + "\"";
}

// Any text without `close`, followed by `close`, which must begin with two ASCII characters.
std::string reasoning_until(std::string_view close) {
  const std::string_view first = close.front() == '[' ? "\\[" : "<";
  return std::format("([^{}] | {} [^{}])* {} [ \\n]*", first, literal(close.substr(0, 1)), close[1], literal(close));
}

// The rule for the arguments of a tool; "{}" if it takes none.
Expected<std::string> arguments_of(const boost::json::object& function, grammar::JsonRules& rules) {
  const boost::json::value* parameters = function.if_contains("parameters");
  if (parameters == nullptr || parameters->is_null()) return literal("{}");
  return rules.add(boost::json::serialize(*parameters));
}

// Adds the place, tools[tool], to an error, and the tool's name, because some APIs have their tools in another form and order.
std::unexpected<Error> refused_schema(std::size_t tool, const boost::json::object& function, const Error& error) {
  std::string field = std::format("tools[{}].function.parameters", tool);
  std::string message =
      std::format("field \"{}\": tool \"{}\": {}", field, std::string_view(function.at("name").as_string()), error.message);
  return std::unexpected(Error{error.code, std::move(message), std::move(field)});
}

// A tool and the rule for its arguments.
struct Callable {
  std::string name;
  std::string arguments;
};

// The schema of a tool's arguments; without one, the schema of all objects.
std::string schema_of(const boost::json::object& function, bool is_wanted) {
  const boost::json::value* parameters = function.if_contains("parameters");
  boost::json::object schema =
      is_wanted && parameters != nullptr && parameters->is_object() ? parameters->get_object() : boost::json::object();
  if (!schema.contains("type")) schema["type"] = "object";
  return boost::json::serialize(schema);
}

// `is_loose`: use the schemas of strict tools only.
Expected<std::vector<Callable>> callables_of(const boost::json::array& tools, bool is_loose, grammar::JsonRules& rules) {
  std::vector<Callable> callables;
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const boost::json::object& function = tools[i].at("function").as_object();
    const boost::json::value* strict = function.if_contains("strict");
    const bool is_strict = strict != nullptr && *strict == true;
    std::string schema = schema_of(function, is_strict || !is_loose);
    if (!is_strict && !grammar::json_schema_gbnf(schema)) schema = schema_of(function, false);
    const auto arguments = rules.add(schema);
    if (!arguments) return refused_schema(i, function, arguments.error());
    callables.push_back({std::string(std::string_view(function.at("name").as_string())), *arguments});
  }
  return callables;
}

// The grammar of begun_call_grammar() around the rules of the arguments.
std::string begun_calls(CallSyntax syntax, bool are_parallel, const std::vector<Callable>& callables,
                        const grammar::JsonRules& rules) {
  // Each rule has one alternative per tool.
  const auto each = [&](auto&& write) {
    std::string alternatives;
    for (const Callable& callable : callables) {
      if (!alternatives.empty()) alternatives += " | ";
      alternatives += write(callable);
    }
    return alternatives;
  };
  const std::string objects = each([](const Callable& callable) {
    const std::string name = "named " + literal(std::format("\"{}\"", callable.name));
    return std::format(R"("{{" ws type? ({0} ws "," ws with {1} | with {1} ws "," ws {0}) id? ws "}}")", name,
                       callable.arguments);
  });
  const std::string grammar = std::format(R"(object ::= {}
named ::= "\"name\"" ws ":" ws
with ::= ("\"arguments\"" | "\"parameters\"") ws ":" ws
type ::= "\"type\"" ws ":" ws "\"function\"" ws "," ws
id ::= ws "," ws "\"id\"" ws ":" ws "\"" [a-zA-Z0-9_-]{{1,64}} "\""
ws ::= [ \t\n]{{0,16}}
{})",
                                          objects, rules.gbnf());
  const int more = are_parallel ? kGrammarCallsMax - 1 : 0;
  switch (syntax) {
    case CallSyntax::llama3:
      return "root ::= ws object\n" + grammar;
    case CallSyntax::mistral: {
      const std::string plain = each([](const Callable& callable) {
        return std::format(R"({} call-id? "[ARGS]"? ws {})", literal(callable.name), callable.arguments);
      });
      return std::format(R"(root ::= ws ("[" ws object (ws "," ws object){{0,{}}} ws "]" | object | {})
call-id ::= "[CALL_ID]" [a-zA-Z0-9_-]{{1,64}}
{})",
                         more, plain, grammar);
    }
    case CallSyntax::deepseek: {
      const std::string fenced = each([](const Callable& callable) {
        return std::format(R"({} ws "\n" ws "```json" ws {} ws "```")", literal(callable.name), callable.arguments);
      });
      const std::string plain = each([](const Callable& callable) {
        return std::format("{} ws {} ws", literal(callable.name + "<｜tool▁sep｜>"), callable.arguments);
      });
      return std::format(R"(root ::= ws call (ws call){{0,{}}} ws "<｜tool▁calls▁end｜>"
call ::= "<｜tool▁call▁begin｜>" ("function<｜tool▁sep｜>" fenced | plain) "<｜tool▁call▁end｜>"
fenced ::= {}
plain ::= {}
{})",
                         more, fenced, plain, grammar);
    }
    case CallSyntax::tagged:
    case CallSyntax::none:
      break;
  }
  return std::format(R"(root ::= ws object ws "</tool_call>"
{})",
                     grammar);
}

}  // namespace

Expected<std::shared_ptr<const grammar::Grammar>> begun_call_grammar(const ReplyFormat& format, const ChatOptions& options) {
  boost::system::error_code problem;
  const boost::json::value tools = json::parse(options.tools, {}, problem);
  if (problem) return fail(ErrorCode::proto_field, "field \"tools\" is not valid JSON");
  const auto make = [&](bool is_loose) -> Expected<std::shared_ptr<const grammar::Grammar>> {
    grammar::JsonRules rules;
    const auto callables = callables_of(tools.as_array(), is_loose, rules);
    if (!callables) return std::unexpected(callables.error());
    return grammar::Grammar::parse(begun_calls(format.calls, options.has_parallel_calls, *callables, rules));
  };
  // Schemas that have grammars alone may exceed the limits together.
  if (auto grammar = make(false)) return grammar;
  return make(true);
}

Expected<std::string> call_grammar(const ReplyFormat& format, const ChatOptions& options) {
  const Notation notation = notation_of(format.calls);
  boost::system::error_code problem;
  const boost::json::value tools = json::parse(options.tools, {}, problem);
  grammar::JsonRules rules;
  std::string calls;
  for (std::size_t i = 0; !problem && i < tools.as_array().size(); ++i) {
    const boost::json::object& function = tools.as_array()[i].at("function").as_object();
    const std::string_view name = function.at("name").as_string();
    if (options.tool_choice == ToolChoice::named && name != options.tool_name) continue;
    const auto arguments = arguments_of(function, rules);
    if (!arguments) return refused_schema(i, function, arguments.error());
    calls += std::format("{}{} {} {}", calls.empty() ? "" : " | ",
                         literal(std::format("{}{}{}", notation.before_name, name, notation.before_arguments)), *arguments,
                         literal(notation.after_arguments));
  }
  std::string reasoning;
  if (format.begins_with_reasoning) {
    reasoning = reasoning_until(format.reasoning_close);
  } else if (!format.reasoning_open.empty()) {
    reasoning = std::format("({} {})?", literal(format.reasoning_open), reasoning_until(format.reasoning_close));
  }
  const bool is_one = options.tool_choice == ToolChoice::named || !options.has_parallel_calls;
  const std::string more = is_one ? "" : std::format("({} call){{0,{}}}", literal(notation.between), kGrammarCallsMax - 1);
  return std::format("root ::= {} {} call {} {}\ncall ::= {}\n{}", reasoning, literal(notation.begin), more,
                     literal(notation.end), calls, rules.gbnf());
}

}  // namespace uma::chat
