#include "capability/call_grammar.h"

#include <format>
#include <string_view>

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "capability/json_schema.h"
#include "wire/field_reader.h"

namespace uma::capability {
namespace {

namespace json = boost::json;

constexpr int kCallsMax = 16;  // of one reply

// What stands around the names and arguments of calls.
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

// A text without `close`, which begins with two characters of ASCII, and then that.
std::string thought_until(std::string_view close) {
  const std::string_view first = close.front() == '[' ? "\\[" : "<";
  return std::format("([^{}] | {} [^{}])* {} [ \\n]*", first, literal(close.substr(0, 1)), close[1], literal(close));
}

// The rule for the arguments of a tool; "{}" where it takes none.
Expected<std::string> arguments_of(const json::object& function, JsonRules& rules) {
  const json::value* parameters = function.if_contains("parameters");
  if (parameters == nullptr || parameters->is_null()) return literal("{}");
  return rules.add(json::serialize(*parameters));
}

}  // namespace

Expected<std::string> call_grammar(const ReplyFormat& format, const ChatOptions& options) {
  const Notation notation = notation_of(format.calls);
  boost::system::error_code problem;
  const json::value tools = wire::parse_json(options.tools, {}, problem);
  JsonRules rules;
  std::string calls;
  for (std::size_t i = 0; !problem && i < tools.as_array().size(); ++i) {
    const json::object& function = tools.as_array()[i].at("function").as_object();
    const std::string_view name = function.at("name").as_string();
    if (options.tool_choice == ToolChoice::named && name != options.tool_name) continue;
    const auto arguments = arguments_of(function, rules);
    if (!arguments) {
      return fail(arguments.error().code,
                  std::format("field \"tools[{}].function.parameters\": {}", i, arguments.error().message));
    }
    calls += std::format("{}{} {} {}", calls.empty() ? "" : " | ",
                         literal(std::format("{}{}{}", notation.before_name, name, notation.before_arguments)), *arguments,
                         literal(notation.after_arguments));
  }
  std::string thought;
  if (format.begins_thinking) {
    thought = thought_until(format.think_close);
  } else if (!format.think_open.empty()) {
    thought = std::format("({} {})?", literal(format.think_open), thought_until(format.think_close));
  }
  const bool is_one = options.tool_choice == ToolChoice::named || !options.has_parallel_calls;
  const std::string more = is_one ? "" : std::format("({} call){{0,{}}}", literal(notation.between), kCallsMax - 1);
  return std::format("root ::= {} {} call {} {}\ncall ::= {}\n{}", thought, literal(notation.begin), more,
                     literal(notation.end), calls, rules.gbnf());
}

}  // namespace uma::capability
