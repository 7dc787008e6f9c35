#include "chat/calls/nested_rules.h"

#include <array>
#include <format>
#include <set>
#include <utility>
#include <vector>

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "chat/calls/call_rules.h"
#include "chat/calls/nested_elements.h"
#include "chat/calls/parameter_types.h"
#include "grammar/gbnf.h"

namespace uma::chat {
namespace {

constexpr int kNestedRulesMax = 1000;     // Rules per tool.
constexpr int kNestedValuesMax = 10'000;  // Values per tool, with repetitions; a value may refer to another part of the schema.
constexpr std::string_view kAnyNested = "nested-any";

}  // namespace

NestedRules::NestedRules(const ElementMarks& marks, const boost::json::value& root, std::string blanks, std::string name,
                         grammar::JsonRules& numbers, std::string& gbnf)
    : marks_(marks), root_(root), blanks_(std::move(blanks)), name_(std::move(name)), numbers_(numbers), gbnf_(gbnf) {}

std::string NestedRules::shared(const ElementMarks& marks, std::string_view blanks) {
  std::string gbnf;
  const std::string text = text_without(marks.open, "nested-text", gbnf);
  const std::string close = close_of(marks, "\n");
  const std::size_t name = close.find('\n');
  gbnf += std::format("{0} ::= {1} | {2} (nested-element {2})+\n", kAnyNested, text, blanks);
  return gbnf + std::format("nested-element ::= {} [^<>\\n\"/] [^<>\\n\"]{{0,63}} {} {} {} any-name {}\n", literal(marks.open),
                            literal(marks.name_end), kAnyNested, literal(close.substr(0, name)),
                            literal(close.substr(name + 1)));
}

std::string NestedRules::value_of(const boost::json::value& schema) {
  if (rules_ >= kNestedRulesMax || values_++ >= kNestedValuesMax) return std::string(kAnyNested);
  const boost::json::value& whole = resolved(schema, root_);
  if (!whole.is_object()) return std::string(kAnyNested);
  if (const auto known = known_.find(&whole); known != known_.end()) return known->second;
  open_.push_back(&whole);
  return known_[&whole] = std::format("{}-value-{}", name_, rules_++);
}

void NestedRules::add_bodies() {
  while (!open_.empty()) {
    const boost::json::value* part = open_.front();
    open_.pop_front();
    const bool is_too_large = gbnf_.size() > grammar::gbnf::kBytesMax;
    gbnf_ += std::format("{} ::= {}\n", known_.at(part), is_too_large ? kAnyNested : body_of(part->get_object()));
  }
}

std::string NestedRules::body_of(const boost::json::object& schema) {
  std::string alternatives;
  for (const boost::json::value& value : values_of(schema)) add_alternative(alternatives, listed(value));
  if (!alternatives.empty()) return alternatives;
  for (const std::string& type : types_of(schema)) add_alternative(alternatives, body_of_type(type, schema));
  for (const std::string_view key : {"anyOf", "oneOf"}) {
    const boost::json::value* parts = schema.if_contains(key);
    if (!alternatives.empty() || parts == nullptr || !parts->is_array()) continue;
    for (const boost::json::value& part : parts->get_array()) add_alternative(alternatives, value_of(part));
  }
  if (!alternatives.empty()) return alternatives;
  if (schema.contains("properties")) return body_of_type("object", schema);
  return schema.contains("items") ? body_of_type("array", schema) : std::string(kAnyNested);
}

std::string NestedRules::body_of_type(std::string_view type, const boost::json::object& schema) {
  const auto within_blanks = [&](std::string_view rule) { return std::format("{0} {1} {0}", blanks_, rule); };
  if (type == "string") return "element-body";
  if (type == "boolean") return within_blanks(R"(("true" | "false"))");
  if (type == "null") return within_blanks(R"("null")");
  if (type == "integer" || type == "number") return within_blanks(number_rule(type, schema, numbers_));
  if (type == "array") {
    const boost::json::value* items = schema.if_contains("items");
    const std::string item = items == nullptr ? std::string(kAnyNested) : value_of(*items);
    return std::format("{0} ({1} {0})*", blanks_, element(kListItem, item));
  }
  if (type != "object") return std::string(kAnyNested);
  const std::string members = members_of(schema);
  return std::format("{} {}", blanks_, members.empty() ? std::format("(nested-element {})*", blanks_) : members);
}

// A rule for the members of an object; empty: it may have any.
std::string NestedRules::members_of(const boost::json::object& schema) {
  const boost::json::value* properties = schema.if_contains("properties");
  const boost::json::object* named = properties == nullptr ? nullptr : properties->if_object();
  const boost::json::value* others = schema.if_contains("additionalProperties");
  const bool is_closed = others != nullptr && *others == false;
  if (named == nullptr || (named->empty() && !is_closed)) return "";
  const std::set<std::string_view> required = required_of(schema);
  std::vector<CallMember> members;
  for (const auto& [name, property] : *named) {
    members.push_back(
        {.rule = std::format("{} {}", element(name, value_of(property)), blanks_), .is_required = required.contains(name)});
  }
  return any_order(std::format("{}-members-{}", name_, rules_++), members, "", gbnf_);
}

std::string NestedRules::element(std::string_view name, const std::string& value) const {
  return std::format("{} {} {}", literal(std::format("{}{}{}", marks_.open, name, marks_.name_end)), value,
                     literal(close_of(marks_, name)));
}

std::string NestedRules::listed(const boost::json::value& value) const {
  std::string text;
  if (const boost::json::object* members = value.if_object()) {
    for (const auto& [name, member] : *members) text += (text.empty() ? "" : " ") + element(name, listed(member));
  } else if (const boost::json::array* items = value.if_array()) {
    for (const boost::json::value& item : *items) text += (text.empty() ? "" : " ") + element(kListItem, listed(item));
  } else {
    return literal(value.is_string() ? std::string(std::string_view(value.get_string())) : boost::json::serialize(value));
  }
  return text.empty() ? literal("") : text;
}

}  // namespace uma::chat
