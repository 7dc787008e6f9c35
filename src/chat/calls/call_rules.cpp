#include "chat/calls/call_rules.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <format>
#include <set>
#include <vector>

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "base/text.h"
#include "chat/calls/parameter_types.h"
#include "grammar/gbnf.h"

namespace uma::chat {
namespace {

constexpr std::size_t kAnyOrderMembersMax = 4;
constexpr int kLooseRulesMax = 1000;     // Rules per tool.
constexpr int kLooseValuesMax = 10'000;  // Values per tool, with repetitions; a value may refer to another part of the schema.
// Types whose values need no rule.
constexpr std::array<std::string_view, 3> kSimpleTypes = {"string", "boolean", "null"};

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

// Rule N: the text so far ends with the mark's first N characters (Knuth, Morris, Pratt, "Fast Pattern Matching in Strings",
// 1977).
std::string rules_without(std::span<const std::string_view> mark, std::string_view name, std::string& gbnf) {
  std::string all;
  std::vector<std::string_view> distinct;
  for (const std::string_view character : mark) {
    if (std::ranges::contains(distinct, character)) continue;
    distinct.push_back(character);
    all += class_member(character);
  }
  for (std::size_t found = 0; found < mark.size(); ++found) {
    std::string alternatives = std::format("[^{}] {}-0", all, name);
    for (const std::string_view character : distinct) {
      std::vector<std::string_view> end(mark.begin(), mark.begin() + static_cast<std::ptrdiff_t>(found));
      end.push_back(character);
      while (!std::ranges::equal(end, mark.first(end.size()))) end.erase(end.begin());
      if (end.size() < mark.size()) alternatives += std::format(" | [{}] {}-{}", class_member(character), name, end.size());
    }
    gbnf += std::format("{}-{} ::= ({})?\n", name, found, alternatives);
  }
  return std::format("{}-0", name);
}

}  // namespace

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

std::string text_without(std::string_view close, std::string_view name, std::string& gbnf) {
  const std::vector<std::string_view> characters = characters_of(close);
  if (std::ranges::contains(characters.begin() + 1, characters.end(), characters.front()))
    return rules_without(characters, name, gbnf);
  const std::string first = class_member(characters.front());
  std::string begun;  // The begins of `close`.
  std::string broken;
  for (std::size_t i = 1; i < characters.size(); ++i) {
    const auto begin = static_cast<std::size_t>(characters[i].data() - close.data());
    const std::string prefix = literal(close.substr(0, begin));
    add_alternative(begun, prefix);
    add_alternative(broken, std::format("{} [^{}{}]", prefix, class_member(characters[i]), first));
  }
  if (begun.empty()) return std::format("[^{}]*", first);
  return std::format("([^{0}] | ({1})* ({2}))* ({1})*", first, begun, broken);
}

void add_alternative(std::string& alternatives, std::string_view more) {
  alternatives += alternatives.empty() ? "" : " | ";
  alternatives += more;
}

std::string any_order(const std::string& name, std::span<const CallMember> members, std::string_view separator,
                      std::string& gbnf) {
  std::vector<std::string> required;
  std::string others;
  for (const CallMember& member : members) {
    if (member.is_required) {
      gbnf += std::format("{}-required-{} ::= {}\n", name, required.size(), member.rule);
      required.push_back(std::format("{}-required-{}", name, required.size()));
    } else {
      add_alternative(others, member.rule);
    }
  }
  const std::string more = name + "-more";
  if (!others.empty()) gbnf += std::format("{} ::= {}\n", more, others);
  // A state is a set of required members that were written, where bit n stands for required[n], or their number.
  const bool keeps_order = required.size() > kAnyOrderMembersMax;
  const std::size_t all = keeps_order ? required.size() : (std::size_t{1} << required.size()) - 1;
  const auto rule_of = [&](std::size_t state, std::string_view before) {
    std::string alternatives;
    const auto add = [&](std::string_view member, std::size_t next) {
      add_alternative(alternatives, std::format("{} {} {}-{}", before, member, name, next));
    };
    if (!others.empty()) add(more, state);
    if (keeps_order && state < all) add(required[state], state + 1);
    for (std::size_t i = 0; i < required.size() && !keeps_order; ++i) {
      const std::size_t bit = std::size_t{1} << i;
      if ((state & bit) == 0) add(required[i], state + bit);
    }
    if (alternatives.empty()) return literal("");
    return state == all ? std::format("({})?", alternatives) : alternatives;
  };
  for (std::size_t state = 0; state <= all; ++state)
    gbnf += std::format("{}-{} ::= {}\n", name, state, rule_of(state, separator));
  gbnf += std::format("{} ::= {}\n", name, rule_of(0, ""));
  return name;
}

boost::json::array values_of(const boost::json::object& schema) {
  if (const boost::json::value* value = schema.if_contains("const")) return {*value};
  const boost::json::value* values = schema.if_contains("enum");
  return values == nullptr || !values->is_array() ? boost::json::array() : values->get_array();
}

std::set<std::string> types_of(const boost::json::object& schema) {
  std::set<std::string> types;
  const boost::json::value* type = schema.if_contains("type");
  const auto add = [&](const boost::json::value& one) { types.insert(one.is_string() ? lower_ascii(one.get_string()) : ""); };
  if (type != nullptr && type->is_string()) add(*type);
  if (type != nullptr && type->is_array()) std::ranges::for_each(type->get_array(), add);
  return types;
}

std::string number_rule(std::string_view type, const boost::json::object& schema, grammar::JsonRules& rules) {
  boost::json::object number{{"type", boost::json::string(type)}};
  for (const std::string_view key : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
    if (const boost::json::value* bound = schema.if_contains(key)) number[key] = *bound;
  }
  return rules.add(boost::json::serialize(number)).value_or("word");
}

std::set<std::string_view> required_of(const boost::json::object& schema) {
  std::set<std::string_view> required;
  if (const boost::json::value* names = schema.if_contains("required"); names != nullptr && names->is_array()) {
    for (const boost::json::value& one : names->get_array()) {
      if (one.is_string()) required.insert(one.get_string());
    }
  }
  return required;
}

std::string listed_values(const boost::json::value& schema, const boost::json::value& root) {
  std::string alternatives;
  const boost::json::object* fields = resolved(schema, root).if_object();
  for (const boost::json::value& value : fields == nullptr ? boost::json::array() : values_of(*fields)) {
    add_alternative(alternatives, literal(value.is_string() ? std::string(std::string_view(value.get_string()))
                                                            : boost::json::serialize(value)));
  }
  return alternatives.empty() ? "" : "(" + alternatives + ")";
}

// --- loose arguments

std::string LooseRules::arguments(const std::string& name, const boost::json::value& schema) {
  name_ = name;
  root_ = &schema;
  rule_count_ = 0;
  value_count_ = 0;
  known_.clear();
  without_body_.clear();
  const boost::json::object* fields = schema.if_object();
  if (fields == nullptr) return "loose";
  const std::string members = members_of(*fields, true);
  if (members.empty()) return "loose";
  gbnf_ += std::format("{0} ::= \"{{\" ws {1} ws \"}}\" | \"(\" ws {1} ws \")\"\n", name, members);
  while (!without_body_.empty()) {
    const boost::json::value* part = without_body_.front();
    without_body_.pop_front();
    const bool is_too_large = gbnf_.size() > grammar::gbnf::kBytesMax;
    gbnf_ += std::format("{} ::= {}\n", known_.at(part), is_too_large ? "value" : body_of(part->get_object()));
  }
  return name;
}

// A rule for the members of an object; empty: it may have any.
std::string LooseRules::members_of(const boost::json::object& schema, bool is_top) {
  const boost::json::value* properties = schema.if_contains("properties");
  const boost::json::object* named = properties == nullptr ? nullptr : properties->if_object();
  const boost::json::value* others = schema.if_contains("additionalProperties");
  const bool is_closed = others != nullptr && *others == false;
  if (named == nullptr || (named->empty() && !is_closed)) return "";
  const std::set<std::string_view> required = required_of(schema);
  std::vector<CallMember> members;
  for (const auto& [name, property] : *named) {
    members.push_back({.rule = std::format("{} ws [:=] ws {}", key_of(name, is_top), value_of(property)),
                       .is_required = required.contains(name)});
  }
  return any_order(std::format("{}-members-{}", name_, rule_count_++), members, "ws \",\" ws", gbnf_);
}

std::string LooseRules::value_of(const boost::json::value& schema) {
  if (rule_count_ >= kLooseRulesMax || value_count_++ >= kLooseValuesMax) return "value";
  const boost::json::value& whole = resolved(schema, *root_);
  const boost::json::object* fields = whole.if_object();
  if (fields == nullptr) return "value";
  if (const boost::json::value* type = fields->if_contains("type"); type != nullptr && type->is_string()) {
    const bool is_simple =
        values_of(*fields).empty() && std::ranges::contains(kSimpleTypes, std::string_view(type->get_string()));
    if (is_simple) return body_of_type(type->get_string(), *fields);
  }
  if (const auto known = known_.find(&whole); known != known_.end()) return known->second;
  without_body_.push_back(&whole);
  return known_[&whole] = std::format("{}-value-{}", name_, rule_count_++);
}

std::string LooseRules::body_of(const boost::json::object& schema) {
  std::string alternatives;
  if (const boost::json::array values = values_of(schema); !values.empty()) {
    for (const boost::json::value& value : values) add_alternative(alternatives, spellings_of(value));
    return alternatives;
  }
  for (const std::string& type : types_of(schema)) add_alternative(alternatives, body_of_type(type, schema));
  for (const std::string_view key : {"anyOf", "oneOf"}) {
    const boost::json::value* parts = schema.if_contains(key);
    if (!alternatives.empty() || parts == nullptr || !parts->is_array()) continue;
    for (const boost::json::value& part : parts->get_array()) add_alternative(alternatives, value_of(part));
  }
  if (!alternatives.empty()) return alternatives;
  return schema.contains("properties") ? body_of_type("object", schema) : "value";
}

std::string LooseRules::body_of_type(std::string_view type, const boost::json::object& schema) {
  if (type == "string") return "quoted";
  if (type == "boolean") return R"(("true" | "false" | "True" | "False"))";
  if (type == "null") return R"(("null" | "None"))";
  if (type == "integer" || type == "number") {
    return number_rule(type, schema, numbers_);
  }
  if (type == "array") {
    const boost::json::value* items = schema.if_contains("items");
    const std::string item = items == nullptr ? "value" : value_of(*items);
    return std::format("\"[\" ws ({0} (ws \",\" ws {0})*)? ws \"]\"", item);
  }
  if (type != "object") return "value";
  const std::string members = members_of(schema, false);
  return std::format("\"{{\" ws {} ws \"}}\"", members.empty() ? "(pair (ws \",\" ws pair)*)?" : members);
}

// A value of a list of values, in each way in which it may be written.
std::string LooseRules::spellings_of(const boost::json::value& value) const {
  if (value.is_bool()) return value.get_bool() ? R"("true" | "True")" : R"("false" | "False")";
  if (value.is_null()) return R"("null" | "None")";
  const std::string json = boost::json::serialize(value);
  if (!value.is_string()) return literal(json);
  const std::string text(std::string_view(value.get_string()));
  if (!quote_.empty()) return literal(std::string(quote_) + text + std::string(quote_));
  const bool is_plain = text.find_first_of("'\\\n") == std::string::npos;
  return literal(json) + (is_plain ? " | " + literal("'" + text + "'") : "");
}

// A parameter's name; within values also in quotes.
std::string LooseRules::key_of(std::string_view name, bool is_top) const {
  const std::string key(name);
  if (is_top) return literal(key);
  return std::format("({} | {} | {})", literal(key), literal("\"" + key + "\""),
                     literal(quote_.empty() ? "'" + key + "'" : std::string(quote_) + key + std::string(quote_)));
}

}  // namespace uma::chat
