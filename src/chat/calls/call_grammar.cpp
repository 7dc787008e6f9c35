#include "chat/calls/call_grammar.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <format>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "chat/calls/call_pattern.h"
#include "chat/calls/call_rules.h"
#include "chat/calls/nested_elements.h"
#include "chat/calls/nested_rules.h"
#include "chat/calls/parameter_types.h"
#include "grammar/gbnf.h"
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

// Calls `call` with the index and the function of each tool that may be called, until it returns an error. Requires: the tools
// as the decoders of requests checked them.
Expected<Unit> for_each_callable(const boost::json::value& tools, const ChatOptions& options,
                                 const std::function<Expected<Unit>(std::size_t, const boost::json::object&)>& call) {
  for (std::size_t i = 0; i < tools.as_array().size(); ++i) {
    const boost::json::object& function = tools.as_array()[i].at("function").as_object();
    if (!options.may_call(std::string_view(function.at("name").as_string()))) continue;
    if (auto done = call(i, function); !done) return done;
  }
  return Unit{};
}

Expected<boost::json::value> parse_tools(const ChatOptions& options) {
  boost::system::error_code problem;
  boost::json::value tools = json::parse(options.tools, {}, problem);
  if (problem) return fail(ErrorCode::proto_field, "field \"tools\" is not valid JSON");
  return tools;
}

std::string parameters_field(std::size_t tool) {
  return std::format("tools[{}].function.parameters", tool);
}

// Adds the place, tools[tool], to an error, and the tool's name, because some APIs have their tools in another form and order.
std::unexpected<Error> refused_schema(std::size_t tool, const boost::json::object& function, const Error& error) {
  std::string field = parameters_field(tool);
  std::string message =
      std::format("field \"{}\": tool \"{}\": {}", field, std::string_view(function.at("name").as_string()), error.message);
  return std::unexpected(Error{error.code, std::move(message), std::move(field)});
}

// The key of a value in Family::function.
std::string_view key_of(std::string_view function, std::string_view value) {
  const std::size_t end = function.rfind("\": ", function.find(value));
  const std::size_t begin = function.rfind('"', end - 1) + 1;
  return function.substr(begin, end - begin);
}

// A tool and the rules for its arguments.
struct Callable {
  std::string name;
  std::string arguments;
  std::string loose_arguments;
  std::string function;  // The object with the name and the arguments.
};

// Collects the rules of a grammar.
class CallGrammarWriter {
 public:
  // `strict_schemas_only`: leave out the schemas of other tools.
  CallGrammarWriter(const Family& family, Use use, bool strict_schemas_only, grammar::LeftOut& left_out)
      : family_(family),
        use_(use),
        strict_schemas_only_(strict_schemas_only),
        left_out_(left_out),
        rules_(use == Use::forced ? grammar::JsonBlanks::python : grammar::JsonBlanks::any, &left_out),
        checked_(grammar::JsonBlanks::any, &left_out) {}

  [[nodiscard]] static bool is_strict(const boost::json::object& function) {
    const boost::json::value* strict = function.if_contains("strict");
    return strict != nullptr && *strict == true;
  }

  // `index` names its rules, so no other tool has it: its place in the request's list.
  [[nodiscard]] Expected<Unit> add_tool(std::size_t index, const boost::json::object& function) {
    const auto has_style = [&](ArgumentStyle style) { return std::ranges::contains(family_.calls, style, &CallForm::style); };
    const std::size_t places = left_out_.places().size();
    const auto arguments = has_style(ArgumentStyle::elements) ? elements_of(index, function) : arguments_of(function);
    left_out_.set_field(parameters_field(index), places);
    if (!arguments) return refused_schema(index, function, arguments.error());
    std::string loose = "loose";
    if (const boost::json::value* schema = function.if_contains("parameters");
        has_style(ArgumentStyle::loose) && uses_schema(function) && schema != nullptr)
      loose = LooseRules(family_.quote, rules_, extra_).arguments(std::format("loose-{}", index), *schema);
    Callable tool{.name = std::string(std::string_view(function.at("name").as_string())),
                  .arguments = *arguments,
                  .loose_arguments = std::move(loose),
                  .function = std::format("function-{}", index)};
    const auto has_function = [](const CallForm& form) { return form.call.contains("{function}"); };
    if (std::ranges::any_of(family_.calls, has_function))
      extra_ += std::format("{} ::= {}\n", tool.function, function_of(tool));
    if (extra_.size() > grammar::gbnf::kBytesMax) return refused_schema(index, function, too_large());
    tools_.push_back(std::move(tool));
    return Unit{};
  }

  // Adds the calls that stand for none, beside the tools. `index`: the number of the request's tools.
  [[nodiscard]] Expected<Unit> add_no_calls(std::size_t index) {
    for (const std::string_view name : family_.no_calls) {
      if (std::ranges::contains(tools_, name, &Callable::name)) continue;
      const boost::json::object function{{"name", boost::json::string(name)}};
      if (auto added = add_tool(index++, function); !added) return added;
    }
    return Unit{};
  }

  // The calls of one form, 1 to `calls_max`; empty: no tool can be called in it.
  [[nodiscard]] std::string calls(const CallForm& form, int calls_max) {
    const Pattern call = pattern_of(form.call);
    const std::string index = calls_max == 1 && use_ == Use::forced ? literal("1") : "[0-9]{1,4}";
    std::string alternatives;
    for (const Callable& tool : tools_) {
      if (!form.name.empty() && form.name != tool.name) continue;
      alternatives += (alternatives.empty() ? "" : " | ") + text_of(call, form, &tool, index);
    }
    if (alternatives.empty()) return "";
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
    // call_rules.cpp and nested_rules.cpp use these names.
    constexpr std::string_view kShared = R"gbnf(ws ::= [ \t\n]{0,16}
any ::= [ !-;=-~]{0,64} | [^<\n]{0,16}
any-name ::= [^<\n]{0,64}
member ::= ("\"type\"" ws ":" ws "\"function\"" | ("\"id\"" | "\"tool_call_id\"") ws ":" ws "\"" id "\"")
loose ::= "{" ws (pair (ws "," ws pair)*)? ws "}" | "(" ws (pair (ws "," ws pair)*)? ws ")"
pair ::= (word | quoted) ws [:=] ws value
raw ::= ([^{] .*)? | "{" [ \t\r\n]* [^"} \t\r\n] .*
value ::= quoted | word | "{" ws (pair (ws "," ws pair)*)? ws "}" | "[" ws (value (ws "," ws value)*)? ws "]"
word ::= [a-zA-Z0-9_.+-]{1,64}
)gbnf";
    std::string marks;
    const std::string quote =
        family_.quote.empty()
            ? std::string(R"gbnf("'" ([^'\\] | "\\" [^\n])* "'" | "\"" ([^"\\] | "\\" [^\n])* "\"")gbnf")
            : std::format("{0} {1} {0}", literal(family_.quote), text_without(family_.quote, "quoted-text", marks));
    if (const std::string_view close = family_.element.close; !close.empty()) {
      const std::size_t name = std::min(close.find("{name}"), close.size());
      const std::string text = text_without(close.substr(0, name), "unmarked", marks);
      const std::string end =
          name == close.size() ? literal(close)
                               : std::format("{} any-name {}", literal(close.substr(0, name)), literal(close.substr(name + 6)));
      marks += std::format("element-body ::= {}\nelement-text ::= element-body {}\n", text, end);
      marks += std::format("element ::= {} [^<>\\n\"]{{1,64}} {} element-text\n", literal(family_.element.open),
                           element_begin(any_attribute()));
      if (name != close.size()) marks += NestedRules::shared(family_.element, blanks(""));
    }
    const std::string_view id = family_.ids == CallIds::nine                             ? "[a-zA-Z0-9]{9}"
                                : family_.ids == CallIds::counted && use_ == Use::forced ? "[0-9]{1,4}"
                                                                                         : "[a-zA-Z0-9_.:-]{1,64}";
    return std::format("{}id ::= {}\n{}quoted ::= {}\n{}{}", kShared, id, marks, quote, extra_, rules_.gbnf());
  }

 private:
  static Error too_large() {
    return {ErrorCode::proto_field, std::format("the tools up to this one need a grammar of more than {} bytes: send fewer "
                                                "tools, or smaller schemas",
                                                grammar::gbnf::kBytesMax)};
  }

  [[nodiscard]] std::string blanks(std::string_view written) const {
    if (use_ == Use::begun) return "ws";
    return written.contains('\t') || written.empty() ? "" : literal(written);
  }

  // `tool` may be null in texts without placeholders. `index`: the rule for {index}.
  [[nodiscard]] std::string text_of(const Pattern& pattern, const CallForm& form, const Callable* tool,
                                    std::string_view index = {}) const {
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
        case PatternPart::Kind::line:
          add(literal("\n"));
          break;
        case PatternPart::Kind::name:
          add(literal(tool->name));
          break;
        case PatternPart::Kind::index:
          add(std::string(index));
          break;
        case PatternPart::Kind::id:
          add(has_name ? "id" : literal("functions." + tool->name + ":") + " [0-9]{1,4}");
          break;
        case PatternPart::Kind::any:
          add("any");
          break;
        case PatternPart::Kind::arguments:
          add(form.style == ArgumentStyle::loose ? tool->loose_arguments
              : form.style == ArgumentStyle::raw ? "raw"
                                                 : tool->arguments);
          break;
        case PatternPart::Kind::function:
          add(tool->function);
          break;
      }
    }
    return text;
  }

  // The object with the name and the arguments.
  [[nodiscard]] std::string function_of(const Callable& tool) const {
    if (use_ == Use::forced) return text_of(pattern_of(family_.function), {}, &tool);
    const std::string name = literal(std::format("\"{}\"", key_of(family_.function, "\"{name}"))) + R"( ws ":" ws )" +
                             literal(std::format("\"{}\"", tool.name));
    const std::string arguments = R"(("\"arguments\"" | "\"parameters\"") ws ":" ws )" + tool.arguments;
    return std::format(
        R"gbnf("{{" ws (member ws "," ws){{0,2}} ({0} ws "," ws {1} | {1} ws "," ws {0}) (ws "," ws member){{0,2}} ws "}}")gbnf",
        name, arguments);
  }

  // Whether arguments follow the tool's schema.
  [[nodiscard]] bool uses_schema(const boost::json::object& function) const {
    return use_ == Use::forced || is_strict(function) || !strict_schemas_only_;
  }

  // The rule for arguments as one object.
  [[nodiscard]] Expected<std::string> arguments_of(const boost::json::object& function) {
    const boost::json::value* parameters = function.if_contains("parameters");
    // Arguments are an object, whatever else the schema allows.
    const auto schema = [&](bool is_used) {
      boost::json::object object =
          is_used && parameters != nullptr && parameters->is_object() ? parameters->get_object() : boost::json::object();
      object["type"] = "object";
      return boost::json::serialize(object);
    };
    if (use_ == Use::forced) {
      if (parameters == nullptr || parameters->is_null()) return literal("{}");
      return rules_.add(schema(true));
    }
    auto rule = rules_.add(schema(uses_schema(function)));
    if (rule || is_strict(function) || left_out_.refuses()) return rule;
    left_out_.add("#", rule.error().message);
    return rules_.add(schema(false));
  }

  // The rule for arguments as elements: those of the schema, or any.
  [[nodiscard]] Expected<std::string> elements_of(std::size_t index, const boost::json::object& function) {
    const boost::json::value* schema = function.if_contains("parameters");
    const boost::json::object* fields = schema == nullptr ? nullptr : schema->if_object();
    const boost::json::value* properties = fields == nullptr ? nullptr : fields->if_contains("properties");
    const std::string between = use_ == Use::forced ? literal(family_.element.between) : "ws";
    const std::string name = std::format("elements-{}", index);
    if (!uses_schema(function) || properties == nullptr || !properties->is_object()) {
      const std::string_view any = family_.element.close.contains("{name}") ? "nested-element" : "element";
      if (use_ == Use::begun) extra_ += std::format("{} ::= ({} ws)*\n", name, any);
      return use_ == Use::begun ? name : std::string();
    }
    const std::set<std::string_view> required = required_of(*fields);
    const ParameterTypes types = parameter_types_of(*schema);
    std::vector<CallMember> members;
    NestedRules nested(family_.element, *schema, blanks(""), std::format("nested-{}", index), rules_, extra_);
    std::size_t bytes = 0;
    for (const auto& [key, property] : properties->get_object()) {
      const TypeSet type = types.find(std::string_view(key))->second;
      const auto element = element_of(key, property, type, *schema, is_strict(function), nested);
      if (!element) return std::unexpected(element.error());
      // Properties may refer to the same long list of values.
      bytes += element->size();
      if (bytes > grammar::gbnf::kBytesMax) return std::unexpected(too_large());
      members.push_back({.rule = std::format("{} {}", *element, between), .is_required = required.contains(key)});
    }
    nested.add_bodies();
    return members.empty() ? std::string() : any_order(name, members, "", extra_);
  }

  // The rules for the attribute of a text, of a value of these types, and of any value; empty: elements have none.
  [[nodiscard]] std::string text_attribute() const {
    const std::string_view attribute = family_.element.text_attribute;
    return attribute.empty() ? "" : literal(std::format(" {}", attribute));
  }
  [[nodiscard]] std::string other_attribute(TypeSet types) const {
    constexpr std::array<std::pair<std::uint8_t, std::string_view>, 5> kTypes{{{TypeSet::integer | TypeSet::number, "number"},
                                                                               {TypeSet::boolean, "boolean"},
                                                                               {TypeSet::null, "null"},
                                                                               {TypeSet::array, "array"},
                                                                               {TypeSet::object, "object"}}};
    constexpr std::string_view kPlace = "{type}";
    const std::string attribute = std::format(" {}", family_.element.other_attribute);
    const std::size_t at = attribute.find(kPlace);
    if (at == std::string::npos) return attribute.size() == 1 ? "" : literal(attribute);
    std::string alternatives;
    for (const auto& [bits, word] : kTypes) {
      if ((types.bits & bits) == 0) continue;
      alternatives += (alternatives.empty() ? "" : " | ") + literal(std::string(attribute).replace(at, kPlace.size(), word));
    }
    return "(" + alternatives + ")";
  }
  [[nodiscard]] std::string any_attribute() const {
    const std::string text = text_attribute();
    return text.empty() ? "" : std::format("({} | {})", text, other_attribute({0xff}));
  }

  // The text between an element's name and its value. `attribute`: a rule; may be empty.
  [[nodiscard]] std::string element_begin(const std::string& attribute) const {
    const ElementMarks& marks = family_.element;
    std::string text = literal(marks.name_end);
    if (!attribute.empty()) {
      text += " " + attribute;
    } else if (!marks.value_begin.empty()) {
      text += " " + (use_ == Use::begun ? "ws" : literal(marks.before_value));
    }
    return marks.value_begin.empty() ? text : text + " " + literal(marks.value_begin);
  }

  [[nodiscard]] Expected<std::string> element_of(std::string_view name, const boost::json::value& property, TypeSet types,
                                                 const boost::json::value& schema, bool is_strict, NestedRules& nested) {
    const ElementMarks& marks = family_.element;
    const std::string quote = marks.quotes_name ? "\"" : "";
    const std::string named = literal(std::format("{}{}{}{}", marks.open, quote, name, quote)) + " ";
    const std::string begin = named + element_begin(types.is_text() ? text_attribute() : other_attribute(types));
    const bool has_others = types.is_text() && !marks.text_attribute.empty();
    const std::string values = !types.is_text() ? ""
                               : has_others     ? listed_texts(property, schema)
                                                : listed_values(property, schema);
    const std::string close = literal(close_of(marks, name));
    // Whitespace that the reader takes for no part of a text.
    const std::string text_space = marks.trims_blanks ? "ws" : marks.keeps_blanks ? "" : "\"\\n\"?";
    const std::string around = use_ == Use::forced ? literal(marks.padding) : text_space;
    if (types.is_text()) {
      if (values.empty()) leave_out_of_text(name, resolved(property, schema));
      const std::string text = values.empty() ? std::format("{} element-body {}", begin, close)
                                              : std::format("{} {} {} {} {}", begin, around, values, around, close);
      const std::string others = has_others ? other_values(property, types, schema) : "";
      return others.empty() ? text : std::format("({} | {} ({}) {})", text, named, others, close);
    }
    if (has_nested_values(marks, types)) {
      if (use_ == Use::forced || is_strict) {
        if (const auto rule = checked_.add(property, schema); !rule) return std::unexpected(rule.error());
      }
      return std::format("{} {} {}", begin, nested.value_of(property), close);
    }
    const boost::json::value any = boost::json::object();
    auto value = rules_.add(property.is_object() ? property : any, schema);
    if (!value && use_ == Use::begun && !is_strict && !left_out_.refuses()) {
      left_out_.add(std::format("#/properties/{}", name), value.error().message);
      value = rules_.add(any, any);
    }
    if (!value) return std::unexpected(value.error());
    const std::string space = use_ == Use::begun ? "ws" : literal(marks.padding);
    return std::format("{} {} {} {} {}", begin, space, with_python_words(*value, types), space, close);
  }

  // Texts between marks are written as they are, without a grammar of their own.
  void leave_out_of_text(std::string_view name, const boost::json::value& property) {
    const boost::json::object* fields = property.if_object();
    for (const std::string_view keyword : {"pattern", "minLength", "maxLength"}) {
      if (fields != nullptr && fields->contains(keyword) && !left_out_.refuses())
        left_out_.add(std::format("#/properties/{}/{}", name, keyword), "");
    }
  }

  // The texts among the values that a schema lists; empty: it lists none. Properties may refer to the same long list.
  [[nodiscard]] std::string listed_texts(const boost::json::value& property, const boost::json::value& root) {
    const boost::json::value& whole = resolved(property, root);
    const auto [known, is_new] = listed_texts_.try_emplace(&whole);
    if (!is_new || !whole.is_object()) return known->second;
    std::string alternatives;
    for (const boost::json::value& value : values_of(whole.get_object())) {
      if (value.is_string()) add_alternative(alternatives, literal(std::string_view(value.get_string())));
    }
    if (!alternatives.empty()) known->second = "(" + alternatives + ")";
    return known->second;
  }

  // The values that a parameter may have beside texts, each with its attribute, as alternatives; empty: none.
  // Beyond a number of values of all parameters there are none.
  [[nodiscard]] std::string other_values(const boost::json::value& property, TypeSet types, const boost::json::value& root) {
    std::string alternatives;
    if (alternatives_left_ <= 0) return alternatives;
    const std::string space = use_ == Use::begun ? "ws" : literal(family_.element.padding);
    const auto add = [&](TypeSet of, const std::string& rule) {
      add_alternative(alternatives, std::format("{} {} {} {}", element_begin(other_attribute(of)), space, rule, space));
    };
    const boost::json::object none;
    const boost::json::value& whole = resolved(property, root);
    const boost::json::object& fields = whole.is_object() ? whole.get_object() : none;
    if (const boost::json::array listed = values_of(fields); !listed.empty()) {
      for (const boost::json::value& value : listed) {
        if (value.is_string()) continue;
        if (--alternatives_left_ < 0) return alternatives;
        const boost::json::value as_schema = boost::json::object{{"const", value}};
        const TypeSet of = schema_types(as_schema, as_schema);
        const bool is_allowed =
            types.bits == 0 || (of.bits & types.bits) != 0 || (of.has(TypeSet::integer) && types.has(TypeSet::number));
        if (is_allowed) add(of, literal(boost::json::serialize(value)));
      }
      return alternatives;
    }
    const bool has_type = fields.contains("type");
    for (const std::string_view key : {"anyOf", "oneOf"}) {
      const boost::json::value* parts = fields.if_contains(key);
      if (has_type || parts == nullptr || !parts->is_array()) continue;
      for (const boost::json::value& part : parts->get_array()) {
        if (--alternatives_left_ < 0) return alternatives;
        const TypeSet of = schema_types(part, root);
        if (of.is_text()) continue;
        const std::string& rule = shared_rule(part, std::string_view(), [&] { return rules_.add(part, root); });
        if (!rule.empty()) add(of, rule);
      }
    }
    if (!has_type && types.bits != 0) return alternatives;
    constexpr std::array<std::pair<TypeSet::Bit, std::string_view>, 6> kTypes{{{TypeSet::number, "number"},
                                                                               {TypeSet::integer, "integer"},
                                                                               {TypeSet::boolean, "boolean"},
                                                                               {TypeSet::null, "null"},
                                                                               {TypeSet::array, "array"},
                                                                               {TypeSet::object, "object"}}};
    for (const auto& [bit, word] : kTypes) {
      const bool is_unknown = types.bits == 0 && bit != TypeSet::integer;  // A number may be one.
      if (!is_unknown && !types.has(bit)) continue;
      const boost::json::object& of = is_unknown ? none : fields;
      const std::string& rule = shared_rule(is_unknown ? any_value_ : whole, word, [&] {
        boost::json::object one = of;
        one["type"] = boost::json::string(word);
        return rules_.add(one, root);
      });
      if (!rule.empty()) add({bit}, rule);
    }
    return alternatives;
  }

  // The rule that `make` makes for values of a type of this schema, made once, since many parameters may refer to it; empty:
  // it has none.
  template <typename Make>
  [[nodiscard]] const std::string& shared_rule(const boost::json::value& schema, std::string_view type, const Make& make) {
    const auto [known, is_new] = shared_rules_.try_emplace(std::pair(&schema, type));
    if (is_new) known->second = make().value_or("");
    return known->second;
  }

  // A value that is no text: `rule`, or a word of Python.
  [[nodiscard]] std::string with_python_words(const std::string& rule, TypeSet types) const {
    if (!family_.python_words) return rule;
    const bool is_boolean = types.has(TypeSet::boolean);
    const bool is_null = types.has(TypeSet::null);
    std::string words = is_boolean ? R"("True" | "False")" : "";
    if (is_null) words += std::string(is_boolean ? " | " : "") + R"("None")";
    if (words.empty()) return rule;
    const bool has_others = (types.bits & ~(TypeSet::boolean | TypeSet::null)) != 0;
    return use_ == Use::forced && !has_others ? "(" + words + ")" : std::format("({} | {})", rule, words);
  }

  const Family& family_;
  const Use use_;
  const bool strict_schemas_only_;
  grammar::LeftOut& left_out_;
  grammar::JsonRules rules_;
  grammar::JsonRules checked_;  // The schemas of nested elements, so that the same ones are refused as for other families.
  std::vector<Callable> tools_;
  std::string extra_;
  int forms_ = 0;
  int alternatives_left_ = 1000;  // Budget of all parameters, for values beside texts.
  const boost::json::value any_value_ = boost::json::object();
  std::map<const boost::json::value*, std::string> listed_texts_;
  std::map<std::pair<const boost::json::value*, std::string_view>, std::string> shared_rules_;  // By schema and type.
};

}  // namespace

Expected<std::shared_ptr<const grammar::Grammar>> begun_call_grammar(const ReplyFormat& format, const ChatOptions& options,
                                                                     grammar::LeftOut* left_out) {
  grammar::LeftOut unread;
  grammar::LeftOut& left = left_out == nullptr ? unread : *left_out;
  const auto tools = parse_tools(options);
  if (!tools) return std::unexpected(tools.error());
  const auto make = [&](bool strict_schemas_only) -> Expected<std::shared_ptr<const grammar::Grammar>> {
    CallGrammarWriter rules(*format.family, Use::begun, strict_schemas_only, left);
    const auto all =
        for_each_callable(*tools, options, [&](std::size_t i, const auto& function) { return rules.add_tool(i, function); });
    if (!all) return std::unexpected(all.error());
    if (auto added = rules.add_no_calls(tools->as_array().size()); !added) return std::unexpected(added.error());
    std::string root;
    for (const CallForm& form : format.family->calls) {
      const std::string calls = rules.calls(form, options.has_parallel_calls ? kGrammarCallsMax : 1);
      if (!calls.empty()) add_alternative(root, calls);
    }
    return grammar::Grammar::parse(std::format("root ::= {}\n{}", root, rules.gbnf()));
  };
  // Schemas that have a grammar each may exceed the limits together.
  auto grammar = make(false);
  if (grammar || left.refuses()) return grammar;
  left.resize(0);
  auto loose = make(true);
  bool has_strict = false;
  (void)for_each_callable(*tools, options, [&](std::size_t i, const boost::json::object& function) -> Expected<Unit> {
    has_strict |= CallGrammarWriter::is_strict(function);
    if (!CallGrammarWriter::is_strict(function) && function.contains("parameters")) left.add(parameters_field(i) + "#", "");
    return Unit{};
  });
  if (!loose && !has_strict) return nullptr;
  return loose;
}

bool has_strict_tool(const ChatOptions& options) {
  bool has_strict = false;
  if (const auto tools = parse_tools(options)) {
    (void)for_each_callable(*tools, options, [&](std::size_t, const boost::json::object& function) -> Expected<Unit> {
      has_strict |= CallGrammarWriter::is_strict(function);
      return Unit{};
    });
  }
  return has_strict;
}

Expected<std::string> call_grammar(const ReplyFormat& format, const ChatOptions& options, std::string_view prompt,
                                   grammar::LeftOut* left_out) {
  grammar::LeftOut unread;
  const auto tools = parse_tools(options);
  if (!tools) return std::unexpected(tools.error());
  CallGrammarWriter rules(*format.family, Use::forced, false, left_out == nullptr ? unread : *left_out);
  const auto all =
      for_each_callable(*tools, options, [&](std::size_t i, const auto& function) { return rules.add_tool(i, function); });
  if (!all) return std::unexpected(all.error());
  const bool is_one = options.tool_choice == ToolChoice::named || !options.has_parallel_calls;
  CallForm form = format.family->calls.front();
  const Pattern open = pattern_of(form.open);
  const std::string_view mark = open.empty() || open.front().kind != PatternPart::Kind::text ? "" : open.front().text;
  const bool has_mark = !mark.empty() && without_blanks_at_end(prompt).ends_with(mark);
  if (has_mark) form.open.remove_prefix(mark.size());
  const std::string calls = rules.calls(form, is_one ? 1 : kGrammarCallsMax);
  std::string reasoning, marks;
  if (!format.thoughts.open.empty() && !has_mark) {
    reasoning = std::format("{} {}", text_without(format.thoughts.close, "reasoning", marks), literal(format.thoughts.close));
    if (!format.family->next_message.empty()) reasoning += " [ \\n]* " + literal(format.family->next_message);
    if (!format.begins_with_reasoning) reasoning = std::format("({} {})?", literal(format.thoughts.open), reasoning);
  }
  // Some models write blanks or line feeds before thoughts, before calls and behind them.
  return std::format("root ::= edge {} edge {} edge\nedge ::= [ \\n]{{0,3}}\n{}{}", reasoning, calls, marks, rules.gbnf());
}

}  // namespace uma::chat
