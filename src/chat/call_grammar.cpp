#include "chat/call_grammar.h"

#include <algorithm>
#include <cstddef>
#include <format>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "chat/call_pattern.h"
#include "chat/parameter_types.h"
#include "grammar/json_schema.h"
#include "json/field_reader.h"

namespace uma::chat {
namespace {

constexpr int kGrammarCallsMax = 16;  // Calls of one reply.

// How a grammar is meant.
enum class Use : std::uint8_t {
  forced,  // One way to write each call.
  begun,   // All ways in which models write them.
};

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

std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> characters;
  while (!text.empty()) {
    std::size_t size = 1;
    while (size < text.size() && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) ++size;
    characters.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return characters;
}

// In a class of characters.
std::string class_member(std::string_view character) {
  return (std::string_view("[]^\\-").contains(character) ? "\\" : "") + std::string(character);
}

// Any text without `close`. Requires: the first character of `close` is nowhere else in it.
std::string text_without(std::string_view close) {
  const std::vector<std::string_view> characters = characters_of(close);
  const std::string first = class_member(characters.front());
  std::string begun;  // The begins of `close`.
  std::string broken;
  for (std::size_t i = 1; i < characters.size(); ++i) {
    const auto begin = static_cast<std::size_t>(characters[i].data() - close.data());
    const std::string prefix = literal(close.substr(0, begin));
    begun += (begun.empty() ? "" : " | ") + prefix;
    broken += std::format("{}{} [^{}{}]", broken.empty() ? "" : " | ", prefix, class_member(characters[i]), first);
  }
  if (begun.empty()) return std::format("[^{}]*", first);
  return std::format("([^{0}] | ({1})* ({2}))* ({1})*", first, begun, broken);
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

// Collects the rules of a grammar.
class CallRules {
 public:
  // `is_loose`: use the schemas of strict tools only.
  CallRules(const Family& family, Use use, bool is_loose) : family_(family), use_(use), is_loose_(is_loose) {}

  [[nodiscard]] static bool is_strict(const boost::json::object& function) {
    const boost::json::value* strict = function.if_contains("strict");
    return strict != nullptr && *strict == true;
  }

  [[nodiscard]] Expected<Unit> add_tool(std::size_t index, const boost::json::object& function) {
    const bool needs_elements =
        std::ranges::any_of(family_.calls, [](const CallForm& form) { return form.style == ArgumentStyle::elements; });
    const auto arguments = needs_elements ? elements_of(index, function) : arguments_of(function);
    if (!arguments) return refused_schema(index, function, arguments.error());
    tools_.push_back({std::string(std::string_view(function.at("name").as_string())), *arguments});
    return Unit{};
  }

  // The calls of one form, 1 to `calls_max`.
  [[nodiscard]] std::string calls(const CallForm& form, int calls_max) {
    const Pattern call = pattern_of(form.call);
    std::string alternatives;
    for (const Callable& tool : tools_) alternatives += (alternatives.empty() ? "" : " | ") + text_of(call, form, &tool);
    const std::string name = std::format("call-{}", forms_++);
    extra_ += std::format("{} ::= {}\n", name, alternatives);
    const bool is_one_block = !form.open.empty() || !form.close.empty() || use_ == Use::forced || form.needs_known_name;
    const std::string between = text_of(pattern_of(form.between), form, nullptr);
    const std::string more = is_one_block && calls_max > 1
                                 ? std::format("({} {}){{0,{}}}", between.empty() ? blanks("") : between, name, calls_max - 1)
                                 : "";
    return std::format("{} {} {} {}", text_of(pattern_of(form.open), form, nullptr), name, more,
                       text_of(pattern_of(form.close), form, nullptr));
  }

  [[nodiscard]] std::string gbnf() const {
    constexpr std::string_view kShared = R"gbnf(ws ::= [ \t\n]{0,16}
id ::= [a-zA-Z0-9_.:-]{1,64}
any ::= [^<\n]{0,64}
member ::= ("\"type\"" ws ":" ws "\"function\"" | ("\"id\"" | "\"tool_call_id\"") ws ":" ws "\"" id "\"")
loose ::= "{" ws (pair (ws "," ws pair)*)? ws "}" | "(" ws (pair (ws "," ws pair)*)? ws ")"
pair ::= (word | quoted) ws [:=] ws value
value ::= quoted | word | "{" ws (pair (ws "," ws pair)*)? ws "}" | "[" ws (value (ws "," ws value)*)? ws "]"
word ::= [a-zA-Z0-9_.+-]{1,64}
)gbnf";
    const std::string quote = family_.quote.empty()
                                  ? std::string(R"gbnf("'" ([^'\\] | "\\" [^\n])* "'" | "\"" ([^"\\] | "\\" [^\n])* "\"")gbnf")
                                  : std::format("{0} {1} {0}", literal(family_.quote), text_without(family_.quote));
    std::string elements;
    if (const std::string_view close = family_.element.close; !close.empty()) {
      elements = std::format("element-text ::= {} {}\nelement ::= {} [^<>\\n\"]{{1,64}} {} element-text\n", text_without(close),
                             literal(close), literal(family_.element.open), element_begin(""));
    }
    return std::format("{}{}quoted ::= {}\n{}{}", kShared, elements, quote, extra_, rules_.gbnf());
  }

 private:
  [[nodiscard]] std::string blanks(std::string_view written) const {
    if (use_ == Use::begun) return "ws";
    return written.contains('\t') || written.empty() ? "" : literal(written);
  }

  // `tool` may be null in texts without placeholders.
  [[nodiscard]] std::string text_of(const Pattern& pattern, const CallForm& form, const Callable* tool) const {
    const bool has_name =
        std::ranges::any_of(pattern, [](const PatternPart& part) { return part.kind == PatternPart::Kind::name; });
    std::string text;
    const auto add = [&](const std::string& part) { text += part.empty() ? "" : (text.empty() ? "" : " ") + part; };
    const bool ends_lines = use_ == Use::forced && form.style == ArgumentStyle::elements;
    for (std::size_t i = 0; i < pattern.size(); ++i) {
      const PatternPart& part = pattern[i];
      switch (part.kind) {
        case PatternPart::Kind::text:
          // A mark that ends the reply is no text of it.
          add(literal(part.text) + (std::ranges::contains(family_.ends, part.text) ? "?" : ""));
          break;
        case PatternPart::Kind::blanks:
          // Each element ends its line.
          if (!ends_lines || i == 0 || pattern[i - 1].kind != PatternPart::Kind::arguments) add(blanks(part.text));
          break;
        case PatternPart::Kind::name:
          add(literal(tool->name));
          break;
        case PatternPart::Kind::id:
          add(has_name ? "id" : literal("functions." + tool->name + ":") + " [0-9]{1,4}");
          break;
        case PatternPart::Kind::any:
          add("any");
          break;
        case PatternPart::Kind::arguments:
          add(form.style == ArgumentStyle::loose ? "loose" : tool->arguments);
          break;
        case PatternPart::Kind::function:
          add(function_of(*tool));
          break;
      }
    }
    return text;
  }

  // The object with the name and the arguments.
  [[nodiscard]] std::string function_of(const Callable& tool) const {
    if (use_ == Use::forced) {
      return std::format("{} {} {}",
                         literal(std::format("{{\"{}\": \"{}\", \"{}\": ", family_.name_key, tool.name, family_.arguments_key)),
                         tool.arguments, literal("}"));
    }
    const std::string name =
        literal(std::format("\"{}\"", family_.name_key)) + R"( ws ":" ws )" + literal(std::format("\"{}\"", tool.name));
    const std::string arguments = R"(("\"arguments\"" | "\"parameters\"") ws ":" ws )" + tool.arguments;
    return std::format(
        R"gbnf("{{" ws (member ws "," ws){{0,2}} ({0} ws "," ws {1} | {1} ws "," ws {0}) (ws "," ws member){{0,2}} ws "}}")gbnf",
        name, arguments);
  }

  // The rule for arguments as one object.
  [[nodiscard]] Expected<std::string> arguments_of(const boost::json::object& function) {
    const boost::json::value* parameters = function.if_contains("parameters");
    if (use_ == Use::forced) {
      if (parameters == nullptr || parameters->is_null()) return literal("{}");
      return rules_.add(boost::json::serialize(*parameters));
    }
    const bool is_wanted = is_strict(function) || !is_loose_;
    const auto schema = [&](bool is_used) {
      boost::json::object object =
          is_used && parameters != nullptr && parameters->is_object() ? parameters->get_object() : boost::json::object();
      if (!object.contains("type")) object["type"] = "object";
      return boost::json::serialize(object);
    };
    std::string wanted = schema(is_wanted);
    if (!is_strict(function) && !grammar::json_schema_gbnf(wanted)) wanted = schema(false);
    return rules_.add(wanted);
  }

  // The rule for arguments as elements: those of the schema in its order, or any.
  [[nodiscard]] Expected<std::string> elements_of(std::size_t index, const boost::json::object& function) {
    const boost::json::value* schema = function.if_contains("parameters");
    const boost::json::object* fields = schema == nullptr ? nullptr : schema->if_object();
    const boost::json::value* properties = fields == nullptr ? nullptr : fields->if_contains("properties");
    const bool uses_schema = use_ == Use::forced || is_strict(function) || !is_loose_;
    const std::string between = use_ == Use::forced ? literal("\n") : "ws";
    std::string rule;
    if (uses_schema && properties != nullptr && properties->is_object()) {
      std::set<std::string_view> required;
      if (const boost::json::value* names = fields->if_contains("required"); names != nullptr && names->is_array()) {
        for (const boost::json::value& one : names->get_array()) {
          if (one.is_string()) required.insert(one.get_string());
        }
      }
      for (const auto& [name, property] : properties->get_object()) {
        const auto element = element_of(name, property, *schema, is_strict(function));
        if (!element) return std::unexpected(element.error());
        rule += std::format("({} {}){} ", *element, between, required.contains(name) ? "" : "?");
      }
    } else if (use_ == Use::begun) {
      rule = "(element ws)*";
    }
    if (rule.empty()) return std::string();
    const std::string name = std::format("elements-{}", index);
    extra_ += std::format("{} ::= {}\n", name, rule);
    return name;
  }

  // The text between an element's name and its value.
  [[nodiscard]] std::string element_begin(std::string_view attribute) const {
    const ElementMarks& marks = family_.element;
    std::string text = literal(marks.name_end);
    if (!attribute.empty()) {
      text += " " + literal(std::string(" ") + std::string(attribute));
    } else if (!marks.text_attribute.empty()) {
      text += std::format(" {} ({} | {})", literal(" "), literal(marks.text_attribute), literal(marks.other_attribute));
    } else if (!marks.value_begin.empty() && use_ == Use::begun) {
      text += " ws";
    }
    return marks.value_begin.empty() ? text : text + " " + literal(marks.value_begin);
  }

  [[nodiscard]] Expected<std::string> element_of(std::string_view name, const boost::json::value& property,
                                                 const boost::json::value& schema, bool is_strict) {
    const ElementMarks& marks = family_.element;
    const TypeSet types = types_of(property, schema);
    const std::string quote = marks.quotes_name ? "\"" : "";
    const std::string begin = literal(std::format("{}{}{}{}", marks.open, quote, name, quote)) + " " +
                              element_begin(types.is_text() ? marks.text_attribute : marks.other_attribute);
    if (types.is_text()) return begin + " element-text";
    // The place of a reference is relative to the whole schema.
    boost::json::object alone = property.is_object() ? property.get_object() : boost::json::object();
    std::string text = boost::json::serialize(alone);
    if (text.contains("\"$ref\"")) {
      for (const std::string_view definitions : {"$defs", "definitions"}) {
        const boost::json::value* shared = schema.get_object().if_contains(definitions);
        if (shared != nullptr) alone[definitions] = *shared;
      }
      text = boost::json::serialize(alone);
    }
    if (use_ == Use::begun && !is_strict && !grammar::json_schema_gbnf(text)) text = "{}";
    const auto value = rules_.add(text);
    if (!value) return std::unexpected(value.error());
    const std::string space = use_ == Use::begun ? "ws" : literal(marks.padding);
    return std::format("{} {} {} {} {}", begin, space, *value, space, literal(marks.close));
  }

  const Family& family_;
  const Use use_;
  const bool is_loose_;
  grammar::JsonRules rules_;
  std::vector<Callable> tools_;
  std::string extra_;
  int forms_ = 0;
};

}  // namespace

Expected<std::shared_ptr<const grammar::Grammar>> begun_call_grammar(const ReplyFormat& format, const ChatOptions& options) {
  boost::system::error_code problem;
  const boost::json::value tools = json::parse(options.tools, {}, problem);
  if (problem) return fail(ErrorCode::proto_field, "field \"tools\" is not valid JSON");
  const auto make = [&](bool is_loose) -> Expected<std::shared_ptr<const grammar::Grammar>> {
    CallRules rules(*format.family, Use::begun, is_loose);
    for (std::size_t i = 0; i < tools.as_array().size(); ++i) {
      if (auto added = rules.add_tool(i, tools.as_array()[i].at("function").as_object()); !added)
        return std::unexpected(added.error());
    }
    std::string root;
    for (const CallForm& form : format.family->calls)
      root += (root.empty() ? "" : " | ") + rules.calls(form, options.has_parallel_calls ? kGrammarCallsMax : 1);
    return grammar::Grammar::parse(std::format("root ::= {}\n{}", root, rules.gbnf()));
  };
  // Schemas that have grammars alone may exceed the limits together.
  if (auto grammar = make(false)) return grammar;
  auto loose = make(true);
  const bool has_strict = std::ranges::any_of(
      tools.as_array(), [](const boost::json::value& tool) { return CallRules::is_strict(tool.at("function").as_object()); });
  return loose || has_strict ? loose : nullptr;
}

Expected<std::string> call_grammar(const ReplyFormat& format, const ChatOptions& options) {
  boost::system::error_code problem;
  const boost::json::value tools = json::parse(options.tools, {}, problem);
  CallRules rules(*format.family, Use::forced, false);
  for (std::size_t i = 0; !problem && i < tools.as_array().size(); ++i) {
    const boost::json::object& function = tools.as_array()[i].at("function").as_object();
    const std::string_view name = function.at("name").as_string();
    if (options.tool_choice == ToolChoice::named && name != options.tool_name) continue;
    if (auto added = rules.add_tool(i, function); !added) return std::unexpected(added.error());
  }
  const bool is_one = options.tool_choice == ToolChoice::named || !options.has_parallel_calls;
  const std::string calls = rules.calls(format.family->calls.front(), is_one ? 1 : kGrammarCallsMax);
  std::string reasoning;
  if (!format.thoughts.open.empty()) {
    reasoning = std::format("{} {} [ \\n]*", text_without(format.thoughts.close), literal(format.thoughts.close));
    if (!format.family->next_message.empty()) reasoning += " " + literal(format.family->next_message);
    if (!format.begins_with_reasoning) reasoning = std::format("({} {})?", literal(format.thoughts.open), reasoning);
  }
  return std::format("root ::= {} {}\n{}", reasoning, calls, rules.gbnf());
}

}  // namespace uma::chat
