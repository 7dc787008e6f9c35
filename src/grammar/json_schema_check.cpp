#include "grammar/json_schema_check.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "grammar/json_schema_numbers.h"
#include "grammar/json_schema_values.h"

namespace uma::grammar {
namespace {

constexpr int kCheckDepthMax = 24;
constexpr std::int64_t kUncounted = std::numeric_limits<std::int64_t>::max();

bool is_count_within(std::size_t count, const boost::json::object& schema, std::string_view min, std::string_view max) {
  const auto size = static_cast<std::int64_t>(count);
  return size >= count_of(schema, min, 0) && size <= count_of(schema, max, kUncounted);
}

}  // namespace

std::int64_t count_of(const boost::json::object& schema, std::string_view name, std::int64_t otherwise) {
  const boost::json::value* value = schema.if_contains(name);
  return value == nullptr ? otherwise : static_cast<std::int64_t>(std::min(value->to_number<double>(), 1e15));
}

bool SchemaChecker::allows(const boost::json::object& schema, const boost::json::value& value, const std::string& path,
                           int depth) {
  if (depth > kCheckDepthMax) refuse(path, "is nested too deep");
  flattener_.charge_all_of(value, path);
  if (const boost::json::value* listed = schema.if_contains("enum"); listed != nullptr && depth > 0) {
    flattener_.charge_all_of(*listed, path);
    if (std::ranges::none_of(listed->get_array(), [&](const auto& one) { return same_value(one, value); })) return false;
  }
  if (const boost::json::value* type = schema.if_contains("type")) {
    const boost::json::array types = type->is_array() ? type->get_array() : boost::json::array{*type};
    if (std::ranges::none_of(types, [&](const boost::json::value& name) { return is_of_type(value, name.get_string()); }))
      return false;
  }
  if (const boost::json::value* branches = schema.if_contains("anyOf")) {
    if (std::ranges::none_of(branches->get_array(), [&](const boost::json::value& branch) {
          return allows_part(branch, value, below(path, "anyOf"), depth);
        }))
      return false;
  }
  if (value.is_string()) return allows_text(schema, value.get_string(), path);
  if (value.is_number()) return allows_number(schema, value, path);
  if (value.is_array()) return allows_array(schema, value.get_array(), path, depth);
  return !value.is_object() || allows_object(schema, value.get_object(), path, depth);
}

bool SchemaChecker::allows_part(const boost::json::value& schema, const boost::json::value& value, const std::string& path,
                                int depth) {
  const boost::json::value flat = flattener_.flatten(schema, path, 0);
  return flat.is_bool() ? flat.get_bool() : allows(flat.get_object(), value, path, depth + 1);
}

std::optional<Pattern> SchemaChecker::pattern_of(std::string_view text, const std::string& place) {
  auto pattern = read_pattern(text);
  if (pattern) return *std::move(pattern);
  left_out_.add(place, pattern.error().message);
  return std::nullopt;
}

std::vector<Pattern> SchemaChecker::patterns_of(const boost::json::object& schema, const std::string& path) {
  std::vector<Pattern> all;
  const auto add = [&](const boost::json::value& text) {
    if (auto pattern = pattern_of(text.get_string(), below(path, "pattern"))) all.push_back(*std::move(pattern));
  };
  if (const boost::json::value* first = schema.if_contains("pattern")) add(*first);
  if (const boost::json::value* more = schema.if_contains(kMorePatterns)) std::ranges::for_each(more->get_array(), add);
  return all;
}

std::optional<bool> SchemaChecker::matches_all(std::vector<Pattern> patterns, std::string_view text, const std::string& place) {
  if (patterns.empty()) return true;
  const auto does_match = matches({.all = std::move(patterns)}, text, texts_.budget());
  if (!does_match) left_out_.add(place, "needs too much work");
  return does_match;
}

bool SchemaChecker::allows_text(const boost::json::object& schema, std::string_view text, const std::string& path) {
  const auto characters = static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
  return is_count_within(characters, schema, "minLength", "maxLength") &&
         matches_all(patterns_of(schema, path), text, below(path, "pattern")).value_or(true);
}

bool SchemaChecker::allows_number(const boost::json::object& schema, const boost::json::value& number,
                                  const std::string& path) {
  if (!is_finite(number)) return true;
  const NumberBound value = bound_of(number, false);
  for (const auto& [name, is_low, excludes] :
       {std::tuple("minimum", true, false), std::tuple("exclusiveMinimum", true, true), std::tuple("maximum", false, false),
        std::tuple("exclusiveMaximum", false, true)}) {
    const boost::json::value* bound = schema.if_contains(name);
    if (bound == nullptr) continue;
    const auto order = compare(value, bound_of(*bound, excludes));
    if (is_low ? order < 0 : order > 0) return false;
    if (excludes && order == 0) return false;
  }
  const boost::json::value* multiple = schema.if_contains("multipleOf");
  if (multiple == nullptr) return true;
  const auto divisor = divisor_of(*multiple);
  const std::string text = value.whole + (value.fraction.empty() ? "" : "." + value.fraction);
  const auto is_multiple = divisor ? matches({.divisor = divisor}, text, texts_.budget()) : std::nullopt;
  if (!is_multiple) left_out_.add(below(path, "multipleOf"), "has too many digits");
  return is_multiple.value_or(true);
}

bool SchemaChecker::allows_array(const boost::json::object& schema, const boost::json::array& items, const std::string& path,
                                 int depth) {
  if (!is_count_within(items.size(), schema, "minItems", "maxItems")) return false;
  if (const boost::json::value* unique = schema.if_contains("uniqueItems"); unique != nullptr && *unique == true) {
    flattener_.charge(items.size() * items.size(), path);
    for (std::size_t i = 0; i < items.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (same_value(items[i], items[j])) return false;
      }
    }
  }
  const boost::json::value* prefix = schema.if_contains("prefixItems");
  const boost::json::value* others = schema.if_contains("items");
  for (std::size_t i = 0; i < items.size(); ++i) {
    const boost::json::value* part = prefix != nullptr && i < prefix->get_array().size() ? &prefix->get_array()[i] : others;
    if (part != nullptr && !allows_part(*part, items[i], below(path, "items"), depth)) return false;
  }
  return true;
}

bool SchemaChecker::allows_object(const boost::json::object& schema, const boost::json::object& members,
                                  const std::string& path, int depth) {
  if (!is_count_within(members.size(), schema, "minProperties", "maxProperties")) return false;
  if (const boost::json::value* required = schema.if_contains("required")) {
    flattener_.charge(required->get_array().size(), path);
    if (std::ranges::any_of(required->get_array(), [&](const auto& key) { return !members.contains(key.get_string()); }))
      return false;
  }
  const boost::json::value* listed = schema.if_contains("properties");
  const boost::json::value* patterns = schema.if_contains("patternProperties");
  const boost::json::value* additional = schema.if_contains("additionalProperties");
  const boost::json::value* names = schema.if_contains("propertyNames");
  for (const auto& [key, value] : members) {
    if (names != nullptr && !allows_part(*names, boost::json::value(key), below(path, "propertyNames"), depth)) return false;
    const boost::json::value* part = listed == nullptr ? nullptr : listed->get_object().if_contains(key);
    bool is_additional = part == nullptr;
    if (part != nullptr && !allows_part(*part, value, below(path, "properties"), depth)) return false;
    if (patterns != nullptr) {
      for (const auto& [text, of_pattern] : patterns->get_object()) {
        const std::string place = below(below(path, "patternProperties"), text);
        const auto pattern = pattern_of(text, place);
        if (!pattern || !matches_all({*pattern}, key, place).value_or(false)) continue;
        is_additional = false;
        if (!allows_part(of_pattern, value, place, depth)) return false;
      }
    }
    if (is_additional && additional != nullptr && !allows_part(*additional, value, below(path, "additionalProperties"), depth))
      return false;
  }
  return true;
}

}  // namespace uma::grammar
