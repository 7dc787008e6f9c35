#include "capability/json_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <format>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "base/utf8.h"
#include "capability/json_pattern.h"
#include "wire/field_reader.h"

namespace uma::capability {
namespace {

namespace json = boost::json;

constexpr std::int64_t kLengthMax = 4096;  // of strings; longer ones are not written, shorter limits hold
constexpr std::int64_t kItemsMax = 1024;   // of arrays that have a limit, likewise
constexpr int kFlattenDepthMax = 48;
constexpr std::size_t kFlattenedMax = 50'000;
constexpr std::size_t kBranchesMax = 256;
constexpr std::uint64_t kWorkMax = 1u << 20;                 // values that are read, compared or copied
constexpr std::int64_t kIntegerEnd = 1'000'000'000'000'000;  // integers are written with up to 15 digits

constexpr std::array<std::string_view, 7> kTypes = {"null", "boolean", "integer", "number", "string", "array", "object"};

// Says nothing about which values there are, or something about the schema itself.
constexpr std::array<std::string_view, 18> kAnnotations = {
    "$schema",         "$comment",      "$defs",      "definitions",  "$anchor",  "$vocabulary", "$dynamicAnchor",
    "title",           "description",   "default",    "examples",     "readOnly", "writeOnly",   "contentMediaType",
    "contentEncoding", "contentSchema", "deprecated", "discriminator"};
constexpr std::array<std::string_view, 15> kRefused = {"not",
                                                       "if",
                                                       "then",
                                                       "else",
                                                       "dependentSchemas",
                                                       "dependentRequired",
                                                       "dependencies",
                                                       "propertyNames",
                                                       "contains",
                                                       "$dynamicRef",
                                                       "$recursiveRef",
                                                       "unevaluatedItems",
                                                       "unevaluatedProperties",
                                                       "patternProperties",
                                                       "additionalItems"};

template <std::size_t N>
bool has(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// What is wrong with a schema; caught in add(), so that the rules read as if nothing could be.
struct Refusal {
  std::string path;
  std::string what;
};

// As the language compares values: 1 and 1.0 are the same.
bool same_value(const json::value& a, const json::value& b) {
  if (a.is_number() && b.is_number()) return a.to_number<double>() == b.to_number<double>();
  if (a.kind() != b.kind()) return false;
  if (a.is_array()) {
    return std::ranges::equal(a.get_array(), b.get_array(), same_value);
  }
  if (a.is_object()) {
    const json::object& left = a.get_object();
    const json::object& right = b.get_object();
    return left.size() == right.size() && std::ranges::all_of(left, [&](const auto& member) {
             const json::value* other = right.if_contains(member.key());
             return other != nullptr && same_value(member.value(), *other);
           });
  }
  return a == b;
}

bool is_whole(const json::value& value) {
  if (value.is_int64() || value.is_uint64()) return true;
  return value.is_double() && std::isfinite(value.get_double()) && value.get_double() == std::trunc(value.get_double());
}

bool is_of_type(const json::value& value, std::string_view type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_bool();
  if (type == "integer") return is_whole(value);
  if (type == "number") return value.is_number();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  return value.is_object();
}

// Whether all its numbers can be written.
bool is_finite(const json::value& value) {
  if (value.is_double()) return std::isfinite(value.get_double());
  if (value.is_array()) return std::ranges::all_of(value.get_array(), is_finite);
  if (value.is_object())
    return std::ranges::all_of(value.get_object(), [](const auto& member) { return is_finite(member.value()); });
  return true;
}

// REQUIRES: is_finite().
void append_json(std::string& out, const json::value& value) {
  if (value.is_double()) {
    // The shortest digits, which JSON and std::format write alike.
    out += std::format("{}", value.get_double());
  } else if (value.is_array()) {
    out += '[';
    for (bool is_first = true; const json::value& item : value.get_array()) {
      if (!std::exchange(is_first, false)) out += ',';
      append_json(out, item);
    }
    out += ']';
  } else if (value.is_object()) {
    out += '{';
    for (bool is_first = true; const auto& [key, member] : value.get_object()) {
      if (!std::exchange(is_first, false)) out += ',';
      out += json::serialize(json::string_view(key));
      out += ':';
      append_json(out, member);
    }
    out += '}';
  } else {
    out += json::serialize(value);
  }
}

std::string pointer_token(std::string_view name) {
  std::string token;
  for (const char c : name) {
    if (c == '~') {
      token += "~0";
    } else if (c == '/') {
      token += "~1";
    } else {
      token += c;
    }
  }
  return token;
}

std::string below(const std::string& path, std::string_view name) {
  return path + "/" + pointer_token(name);
}
std::string below(const std::string& path, std::string_view name, std::size_t index) {
  return std::format("{}/{}/{}", path, pointer_token(name), index);
}

// --- integers and numbers between bounds

// Whole numbers from `low` to `high`, both of `digits` digits (as texts), as alternatives.
void add_equally_long(std::vector<std::string>& alternatives, const std::string& prefix, std::string_view low,
                      std::string_view high) {
  if (low.empty()) {
    alternatives.push_back(std::format("\"{}\"", prefix));
    return;
  }
  const auto rest = low.size() - 1;
  const bool low_is_least = low.substr(1).find_first_not_of('0') == std::string_view::npos;
  const bool high_is_most = high.substr(1).find_first_not_of('9') == std::string_view::npos;
  const auto add_free = [&](char first, char last) {
    if (first > last) return;
    std::string alternative = prefix.empty() ? "" : std::format("\"{}\" ", prefix);
    alternative += std::format("[{}-{}]", first, last);
    if (rest > 0) alternative += std::format(" [0-9]{{{}}}", rest);
    alternatives.push_back(std::move(alternative));
  };
  if (low[0] == high[0]) {
    if (low_is_least && high_is_most) return add_free(low[0], high[0]);
    return add_equally_long(alternatives, prefix + low[0], low.substr(1), high.substr(1));
  }
  char first = low[0];
  char last = high[0];
  if (!low_is_least) {
    add_equally_long(alternatives, prefix + low[0], low.substr(1), std::string(rest, '9'));
    ++first;
  }
  if (!high_is_most) --last;
  add_free(first, last);
  if (!high_is_most) add_equally_long(alternatives, prefix + high[0], std::string(rest, '0'), high.substr(1));
}

// The digits of the whole numbers from `low` to `high`, 0 <= low <= high < kIntegerEnd.
void add_naturals(std::vector<std::string>& alternatives, std::int64_t low, std::int64_t high) {
  while (low <= high) {
    const std::string begin = std::to_string(low);
    const std::int64_t end = std::min(high, static_cast<std::int64_t>(std::pow(10.0, static_cast<double>(begin.size()))) - 1);
    add_equally_long(alternatives, "", begin, std::to_string(end));
    low = end + 1;
  }
}

std::string joined(std::span<const std::string> alternatives) {
  std::string out = "(";
  for (std::size_t i = 0; i < alternatives.size(); ++i) {
    if (i > 0) out += " | ";
    out += alternatives[i];
  }
  return alternatives.empty() ? "[]" : out + ")";  // a class without characters: no text at all
}

std::string naturals(std::int64_t low, std::int64_t high) {
  std::vector<std::string> alternatives;
  add_naturals(alternatives, low, high);
  return joined(alternatives);
}

// Bounds of numbers, inclusive for integers.
struct Bounds {
  std::optional<std::int64_t> low;
  std::optional<std::int64_t> high;
  bool low_excluded = false;  // numbers only
  bool high_excluded = false;
};

std::string integers(const Bounds& bounds) {
  if (!bounds.low && !bounds.high) return R"("-"? ("0" | [1-9] [0-9]{0,14}))";
  const std::int64_t low = std::max(bounds.low.value_or(1 - kIntegerEnd), 1 - kIntegerEnd);
  const std::int64_t high = std::min(bounds.high.value_or(kIntegerEnd - 1), kIntegerEnd - 1);
  std::vector<std::string> alternatives;
  if (low < 0) {
    const std::int64_t least = std::max<std::int64_t>(1, high < 0 ? -high : 1);
    if (least <= -low) alternatives.push_back("\"-\" " + naturals(least, -low));
  }
  if (high >= 0 && std::max<std::int64_t>(low, 0) <= high)
    alternatives.push_back(naturals(std::max<std::int64_t>(low, 0), high));
  return joined(alternatives);
}

// What follows a minus, or nothing: numbers from `low` (or above) to `high` (or below); kIntegerEnd: to the end of the digits.
std::string magnitudes(std::int64_t low, bool low_excluded, std::int64_t high, bool high_excluded) {
  constexpr std::string_view kAny = R"(("." [0-9]{1,15})?)";
  constexpr std::string_view kAbove = R"("." [0-9]{0,14} [1-9])";
  constexpr std::string_view kExact = R"(("." "0"{1,15})?)";
  std::vector<std::string> alternatives;
  const bool ends = high < kIntegerEnd;
  if (low > high || (low == high && (low_excluded || high_excluded))) return joined({});
  std::int64_t first = low;
  if (low_excluded) {
    alternatives.push_back(std::format("\"{}\" {}", low, kAbove));
    ++first;
  }
  if (first <= high - 1) alternatives.push_back(std::format("{} {}", naturals(first, high - 1), kAny));
  if (ends && !high_excluded && first <= high) alternatives.push_back(std::format("\"{}\" {}", high, kExact));
  return joined(alternatives);
}

std::string numbers(const Bounds& bounds) {
  if (!bounds.low && !bounds.high) return R"("-"? ("0" | [1-9] [0-9]{0,14}) ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})?)";
  const std::int64_t low = bounds.low.value_or(-kIntegerEnd);
  const std::int64_t high = bounds.high.value_or(kIntegerEnd);
  std::vector<std::string> alternatives;
  // Zero is written without a minus.
  if (low < 0) {
    const bool is_negative = high <= 0;
    alternatives.push_back(
        "\"-\" " + magnitudes(is_negative ? -high : 0, high < 0 ? bounds.high_excluded : true, -low, bounds.low_excluded));
  }
  if (high >= 0) {
    const bool is_positive = low >= 0;
    alternatives.push_back(magnitudes(is_positive ? low : 0, is_positive && bounds.low_excluded, high, bounds.high_excluded));
  }
  return joined(alternatives);
}

// --- formats of strings

std::string_view format_pattern(std::string_view format) {
  static constexpr std::string_view kDate =
      "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])))";
  static constexpr std::string_view kTime =
      "(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))";
  static const std::string date_time = std::format("^{}T{}$", kDate, kTime);
  static const std::string date = std::format("^{}$", kDate);
  static const std::string time = std::format("^{}$", kTime);
  if (format == "date-time") return date_time;
  if (format == "date") return date;
  if (format == "time") return time;
  if (format == "duration")
    return "^P([0-9]{1,6}W|(([0-9]{1,6}Y([0-9]{1,6}M([0-9]{1,6}D)?)?|[0-9]{1,6}M([0-9]{1,6}D)?|[0-9]{1,6}D)(T([0-9]{1,6}H([0-9]"
           "{1,"
           "6}M([0-9]{1,6}S)?)?|[0-9]{1,6}M([0-9]{1,6}S)?|[0-9]{1,6}S))?|T([0-9]{1,6}H([0-9]{1,6}M([0-9]{1,6}S)?)?|[0-9]{1,6}M("
           "[0-9]{1,"
           "6}S)?|[0-9]{1,6}S)))$";
  if (format == "uuid") return "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$";
  if (format == "ipv4")
    return "^((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])$";
  if (format == "ipv6") return "^([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}$";
  if (format == "hostname") return "^[a-z]([a-z0-9]{0,20})(\\.[a-z]([a-z0-9]{0,20})){0,3}$";
  if (format == "email")
    return "^[a-z0-9]([a-z0-9_+]{0,30})(\\.[a-z0-9_+]{1,20}){0,2}@[a-z]([a-z0-9]{0,20})(\\.[a-z]([a-z0-9]{0,20})){1,3}$";
  if (format == "uri") return "^https?://[a-z]([a-z0-9]{0,20})(\\.[a-z]([a-z0-9]{0,20})){0,3}(/[A-Za-z0-9._~-]{0,60}){0,8}$";
  return {};
}

}  // namespace

class JsonRules::Compiler {
 public:
  // Returns the rule of the schema's values.
  std::string add(const json::value& root) {
    root_ = &root;
    known_.clear();
    open_.clear();
    const std::string rule = rule_of(root, "#");
    while (!open_.empty()) {
      const Open open = std::move(open_.front());
      open_.pop_front();
      define(open.rule, body_of(flatten(open.schema, open.path, 0), open.path));
    }
    return rule;
  }

  std::string gbnf;

 private:
  struct Open {
    std::string rule;
    json::value schema;
    std::string path;
  };

  [[noreturn]] static void refuse(const std::string& path, std::string what) { throw Refusal{path, std::move(what)}; }

  void define(const std::string& rule, std::string_view body) {
    gbnf += rule;
    gbnf += " ::= ";
    gbnf += body;
    gbnf += '\n';
    // Rules repeat parts of the schema where they merge it.
    if (gbnf.size() > kSchemaBytesMax) throw Refusal{"#", "the schema is too large as a grammar"};
  }
  std::string new_rule() {
    if (++rules_count_ > kSchemaRulesMax)
      throw Refusal{"#", std::format("the schema needs more than {} rules", kSchemaRulesMax)};
    return std::format("json-{}", rules_count_);
  }
  // A rule that many schemas share.
  std::string shared(const std::string& name, std::string_view body) {
    const std::string rule = "json-" + name;
    if (shared_.insert(name).second) define(rule, body);
    return rule;
  }

  // Merging and comparing take much more work than a schema is long: it is counted before it is done.
  void charge(std::uint64_t units, const std::string& path) {
    work_ += units;
    if (work_ > kWorkMax) refuse(path, "is too large, with what is merged into it");
  }
  void charge_all_of(const json::value& value, const std::string& path) {
    charge(1, path);
    if (value.is_string()) charge(value.get_string().size() / 32, path);
    if (value.is_array()) {
      for (const json::value& element : value.get_array()) charge_all_of(element, path);
    }
    if (value.is_object()) {
      for (const auto& member : value.get_object()) charge_all_of(member.value(), path);
    }
  }

  // The same schema has the same rule: so recursion ends.
  std::string rule_of(const json::value& schema, const std::string& path) {
    std::string text = json::serialize(schema);
    charge(text.size() / 8, path);
    const auto [known, is_new] = known_.try_emplace(std::move(text));
    if (is_new) {
      known->second = new_rule();
      open_.push_back({known->second, schema, path});
    }
    return known->second;
  }

  // --- the schema without references and combinations

  // `schema` as an object with `anyOf` as its only combination, or as a boolean.
  json::value flatten(const json::value& schema, const std::string& path, int depth) {
    if (depth > kFlattenDepthMax) refuse(path, "references or combinations lead to each other without end");
    // References can meet the same schema over and over, twice as often at each level.
    if (++flattened_ > kFlattenedMax) refuse(path, "has too many combinations");
    if (schema.is_bool()) return schema;
    if (!schema.is_object()) refuse(path, "a schema must be an object, true or false");
    charge_all_of(schema, path);
    json::object plain;
    std::vector<json::value> parts;  // all of which must hold too
    for (const auto& [key, value] : schema.get_object()) {
      const std::string_view name = key;
      if (name == "$ref") {
        std::string target_path;
        const json::value& target = resolve(value, path, target_path);
        parts.push_back(flatten(target, target_path, depth + 1));
      } else if (name == "allOf") {
        const json::array& all = schemas_of(value, path, name);
        for (std::size_t i = 0; i < all.size(); ++i) parts.push_back(flatten(all[i], below(path, name, i), depth + 1));
      } else if (name == "anyOf") {
        parts.emplace_back(json::object{{"anyOf", schemas_of(value, path, name)}});
      } else if (name == "oneOf") {
        const json::array& one = schemas_of(value, path, name);
        check_disjoint(one, path, depth);
        parts.emplace_back(json::object{{"anyOf", one}});
      } else if (name == "const") {
        parts.emplace_back(json::object{{"enum", json::array{value}}});
      } else if (name == "nullable") {
        if (!value.is_bool()) refuse(below(path, name), "must be true or false");
        // OpenAPI 3.0: beside a type.
      } else if (name == "$id" || name == "id") {
        if (path != "#" && value.is_string()) refuse(below(path, name), "is served at the top only");
      } else if (has(kRefused, name)) {
        const bool says_nothing = value == true || (value.is_object() && value.get_object().empty());
        if (!says_nothing || name == "not" || name == "contains") refuse(below(path, name), "is not served");
      } else if (!has(kAnnotations, name)) {
        check_keyword(name, value, path);
        plain[key] = value;
      }
    }
    if (const json::value* nullable = schema.get_object().if_contains("nullable"); nullable != nullptr && *nullable == true) {
      if (json::value* type = plain.if_contains("type")) {
        json::array types = type->is_array() ? type->get_array() : json::array{*type};
        types.emplace_back("null");
        *type = types;
      }
    }
    json::value whole = std::move(plain);
    for (const json::value& part : parts) whole = merge(whole, part, path);
    return whole;
  }

  static const json::array& schemas_of(const json::value& value, const std::string& path, std::string_view name) {
    if (!value.is_array() || value.get_array().empty()) refuse(below(path, name), "must be an array of schemas");
    if (value.get_array().size() > kBranchesMax)
      refuse(below(path, name), std::format("has more than {} schemas", kBranchesMax));
    return value.get_array();
  }

  const json::value& resolve(const json::value& reference, const std::string& path, std::string& target_path) const {
    const std::string place = below(path, "$ref");
    if (!reference.is_string()) refuse(place, "must be a string");
    const std::string_view text = reference.get_string();
    if (!text.starts_with('#') || (text.size() > 1 && text[1] != '/')) {
      refuse(place,
             std::format("\"{}\" is not served: only references into the schema itself, such as \"#/$defs/name\"", text));
    }
    const json::value* at = root_;
    std::string_view rest = text.substr(1);
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find('/', 1), rest.size());
      const std::string name = unescaped(rest.substr(1, end - 1));
      rest = rest.substr(end);
      const json::value* next = nullptr;
      if (at->is_object()) {
        next = at->get_object().if_contains(name);
      } else if (at->is_array() && !name.empty() && name.size() < 6 &&
                 name.find_first_not_of("0123456789") == std::string::npos) {
        const auto index = static_cast<std::size_t>(std::stoul(name));
        if (index < at->get_array().size()) next = &at->get_array()[index];
      }
      if (next == nullptr) refuse(place, std::format("\"{}\" is not in the schema", text));
      if (next->is_object() && next->get_object().contains("$id")) refuse(place, "leads into a schema with an $id of its own");
      at = next;
    }
    target_path = std::string(text);
    return *at;
  }

  // A part of a pointer in a URI fragment.
  static std::string unescaped(std::string_view token) {
    std::string decoded;
    for (std::size_t i = 0; i < token.size(); ++i) {
      unsigned value = 0;
      const auto digit = [&](char c) {
        return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
      };
      if (token[i] == '%' && i + 2 < token.size() && digit(token[i + 1]) >= 0 && digit(token[i + 2]) >= 0) {
        value = static_cast<unsigned>(digit(token[i + 1]) * 16 + digit(token[i + 2]));
        decoded += static_cast<char>(value);
        i += 2;
      } else {
        decoded += token[i];
      }
    }
    std::string name;
    for (std::size_t i = 0; i < decoded.size(); ++i) {
      if (decoded[i] == '~' && i + 1 < decoded.size() && (decoded[i + 1] == '0' || decoded[i + 1] == '1')) {
        name += decoded[++i] == '0' ? '~' : '/';
      } else {
        name += decoded[i];
      }
    }
    return name;
  }

  // --- keywords

  // Types of values; whether they can be met is seen later.
  static void check_keyword(std::string_view name, const json::value& value, const std::string& path) {
    const auto must = [&](bool is_right, std::string_view what) {
      if (!is_right) refuse(below(path, name), std::format("must be {}", what));
    };
    const auto is_count = [&] { return is_whole(value) && value.to_number<double>() >= 0; };
    if (name == "type") {
      const auto is_type = [](const json::value& type) { return type.is_string() && has(kTypes, type.get_string()); };
      must(
          is_type(value) || (value.is_array() && !value.get_array().empty() && std::ranges::all_of(value.get_array(), is_type)),
          "a type or an array of types");
    } else if (name == "enum") {
      must(value.is_array(), "an array");
    } else if (name == "properties") {
      must(value.is_object(), "an object of schemas");
    } else if (name == "required") {
      must(value.is_array() && std::ranges::all_of(value.get_array(), [](const json::value& key) { return key.is_string(); }),
           "an array of strings");
    } else if (name == "items" && value.is_array()) {
      refuse(below(path, name), "is an array, as drafts before 2020-12 had it: use \"prefixItems\"");
    } else if (name == "prefixItems") {
      must(value.is_array() && !value.get_array().empty(), "an array of schemas");
    } else if (name == "minLength" || name == "maxLength" || name == "minItems" || name == "maxItems" ||
               name == "minProperties" || name == "maxProperties") {
      must(is_count(), "a whole number from 0");
    } else if (name == "minimum" || name == "maximum" || name == "exclusiveMinimum" || name == "exclusiveMaximum" ||
               name == "multipleOf") {
      must(value.is_number(), "a number");
    } else if (name == "pattern" || name == "format") {
      must(value.is_string(), "a string");
    } else if (name == "uniqueItems") {
      must(value.is_bool(), "true or false");
    }
  }

  static json::array types_of(const json::object& schema) {
    const json::value* type = schema.if_contains("type");
    if (type != nullptr) return type->is_array() ? type->get_array() : json::array{*type};
    // Where no type is said, what is said about values of one type means these.
    static constexpr std::array<std::pair<std::string_view, std::string_view>, 19> kMeans = {
        {{"properties", "object"},
         {"required", "object"},
         {"additionalProperties", "object"},
         {"minProperties", "object"},
         {"maxProperties", "object"},
         {"items", "array"},
         {"prefixItems", "array"},
         {"minItems", "array"},
         {"maxItems", "array"},
         {"uniqueItems", "array"},
         {"minLength", "string"},
         {"maxLength", "string"},
         {"pattern", "string"},
         {"format", "string"},
         {"minimum", "number"},
         {"maximum", "number"},
         {"exclusiveMinimum", "number"},
         {"exclusiveMaximum", "number"},
         {"multipleOf", "number"}}};
    json::array types;
    for (const auto& [keyword, meant] : kMeans) {
      if (schema.contains(keyword) && std::ranges::find(types, json::value(meant)) == types.end()) types.emplace_back(meant);
    }
    if (types.empty()) types = {"null", "boolean", "number", "string", "array", "object"};
    return types;
  }

  // --- both of two schemas

  json::value merge(const json::value& a, const json::value& b, const std::string& path) {
    if (a.is_bool()) return a.get_bool() ? b : a;
    if (b.is_bool()) return b.get_bool() ? a : b;
    charge_all_of(a, path);
    charge_all_of(b, path);
    json::object both = a.get_object();
    const json::object& left = a.get_object();
    const json::object& right = b.get_object();
    if (left.empty()) return b;
    for (const auto& [key, value] : right) {
      const std::string_view name = key;
      if (name == "properties" || name == "additionalProperties" || name == "prefixItems" || name == "items") continue;
      json::value* mine = both.if_contains(key);
      if (mine == nullptr) {
        both[key] = value;
      } else if (*mine != value) {
        *mine = merge_keyword(name, *mine, value, path);
      }
    }
    merge_properties(both, left, right);
    merge_items(both, left, right);
    if (both.contains("enum") && left.contains("enum") && right.contains("enum") && both["enum"].get_array().empty())
      return false;
    return both;
  }

  json::value merge_keyword(std::string_view name, const json::value& a, const json::value& b, const std::string& path) {
    if (name == "type") return merge_types(a, b, path);
    if (name == "enum") {
      charge(a.get_array().size() * b.get_array().size(), path);
      json::array both;
      for (const json::value& value : a.get_array()) {
        if (std::ranges::any_of(b.get_array(), [&](const json::value& other) { return same_value(value, other); }))
          both.push_back(value);
      }
      return both;
    }
    if (name == "required") {
      json::array both = a.get_array();
      std::unordered_set<std::string_view> known;
      for (const json::value& key : a.get_array()) known.insert(key.get_string());
      for (const json::value& key : b.get_array()) {
        if (known.insert(key.get_string()).second) both.push_back(key);
      }
      return both;
    }
    if (name == "anyOf") {
      charge(a.get_array().size() * b.get_array().size(), path);

      json::array both;
      for (const json::value& first : a.get_array()) {
        for (const json::value& second : b.get_array()) both.push_back(json::object{{"allOf", json::array{first, second}}});
      }
      if (both.size() > kBranchesMax) refuse(path, "has too many combinations of anyOf and oneOf");
      return both;
    }
    if (name == "uniqueItems") return a == true || b == true;
    const bool is_lower = name.starts_with("min") || name == "exclusiveMinimum";
    const bool is_upper = name.starts_with("max") || name == "exclusiveMaximum";
    if (is_lower || is_upper) {
      const bool a_is_less = a.to_number<double>() < b.to_number<double>();
      return a_is_less == is_lower ? b : a;
    }
    refuse(path, std::format("says \"{}\" twice, which is not served", name));
  }

  json::value merge_types(const json::value& a, const json::value& b, const std::string& path) {
    const json::array left = a.is_array() ? a.get_array() : json::array{a};
    const json::array right = b.is_array() ? b.get_array() : json::array{b};
    charge(left.size() * right.size(), path);
    json::array both;
    const auto add = [&](const json::value& type) {
      if (std::ranges::find(both, type) == both.end()) both.push_back(type);
    };
    for (const json::value& mine : left) {
      for (const json::value& other : right) {
        if (mine == other) add(mine);
        if ((mine == "number" && other == "integer") || (mine == "integer" && other == "number")) add("integer");
      }
    }
    return both;
  }

  static json::value both_of(const json::value& a, const json::value& b) {
    return a == b ? a : json::value(json::object{{"allOf", json::array{a, b}}});
  }

  static void merge_properties(json::object& both, const json::object& left, const json::object& right) {
    const json::value* additional_left = left.if_contains("additionalProperties");
    const json::value* additional_right = right.if_contains("additionalProperties");
    const json::object empty;
    const auto properties_of = [&](const json::object& schema) -> const json::object& {
      const json::value* properties = schema.if_contains("properties");
      return properties == nullptr ? empty : properties->get_object();
    };
    json::object properties;
    for (const auto& [key, value] : properties_of(left)) {
      const json::value* other = properties_of(right).if_contains(key);
      if (other == nullptr) other = additional_right;
      properties[key] = other == nullptr ? value : both_of(value, *other);
    }
    for (const auto& [key, value] : properties_of(right)) {
      if (properties.contains(key)) continue;
      properties[key] = additional_left == nullptr ? value : both_of(value, *additional_left);
    }
    if (!properties.empty()) both["properties"] = properties;
    if (additional_left != nullptr && additional_right != nullptr) {
      both["additionalProperties"] = both_of(*additional_left, *additional_right);
    } else if (additional_right != nullptr) {
      both["additionalProperties"] = *additional_right;
    }
  }

  static void merge_items(json::object& both, const json::object& left, const json::object& right) {
    const json::value* items_left = left.if_contains("items");
    const json::value* items_right = right.if_contains("items");
    const json::array empty;
    const auto prefix_of = [&](const json::object& schema) -> const json::array& {
      const json::value* prefix = schema.if_contains("prefixItems");
      return prefix == nullptr ? empty : prefix->get_array();
    };
    const json::array& prefix_left = prefix_of(left);
    const json::array& prefix_right = prefix_of(right);
    json::array prefix;
    for (std::size_t i = 0; i < std::max(prefix_left.size(), prefix_right.size()); ++i) {
      const json::value* mine = i < prefix_left.size() ? &prefix_left[i] : items_left;
      const json::value* other = i < prefix_right.size() ? &prefix_right[i] : items_right;
      if (mine == nullptr) std::swap(mine, other);
      prefix.push_back(other == nullptr ? *mine : both_of(*mine, *other));
    }
    if (!prefix.empty()) both["prefixItems"] = prefix;
    if (items_left != nullptr && items_right != nullptr) {
      both["items"] = both_of(*items_left, *items_right);
    } else if (items_right != nullptr) {
      both["items"] = *items_right;
    }
  }

  // --- oneOf: as anyOf, where no value is of two

  void check_disjoint(const json::array& branches, const std::string& path, int depth) {
    std::vector<json::value> flat;
    for (std::size_t i = 0; i < branches.size(); ++i) flat.push_back(flatten(branches[i], below(path, "oneOf", i), depth + 1));
    for (std::size_t i = 0; i < flat.size(); ++i) {
      for (std::size_t j = i + 1; j < flat.size(); ++j) {
        if (are_disjoint(flat[i], flat[j], path, depth + 1)) continue;
        refuse(below(path, "oneOf"),
               std::format("a value may be of both its schemas {} and {}: use anyOf, or give them types, constants or "
                           "required properties of constants that differ",
                           i, j));
      }
    }
  }

  // False where it cannot be told.
  bool are_disjoint(const json::value& a, const json::value& b, const std::string& path, int depth) {
    if (depth > kFlattenDepthMax) return false;
    charge_all_of(a, path);
    charge_all_of(b, path);
    if (a == false || b == false) return true;
    if (!a.is_object() || !b.is_object()) return false;
    const json::object& left = a.get_object();
    const json::object& right = b.get_object();
    const auto are_branches_apart = [&](const json::object& schema, const json::value& other) {
      const json::value* branches = schema.if_contains("anyOf");
      return branches != nullptr && std::ranges::all_of(branches->get_array(), [&](const json::value& branch) {
               return are_disjoint(flatten(branch, path, depth + 1), other, path, depth + 1);
             });
    };
    if (are_branches_apart(left, b) || are_branches_apart(right, a)) return true;
    const auto may_be = [](const json::object& schema, std::string_view type) {
      if (const json::value* values = schema.if_contains("enum")) {
        if (std::ranges::none_of(values->get_array(), [&](const json::value& value) { return is_of_type(value, type); }))
          return false;
      }
      const json::value* types = schema.if_contains("type");
      if (types == nullptr) return true;
      const json::array all = types->is_array() ? types->get_array() : json::array{*types};
      return std::ranges::any_of(all, [&](const json::value& said) {
        return std::string_view(said.get_string()) == type || (type == "number" && said == "integer");
      });
    };
    std::vector<std::string_view> common;
    for (const std::string_view type : {"null", "boolean", "number", "string", "array", "object"}) {
      if (may_be(left, type) && may_be(right, type)) common.push_back(type);
    }
    if (common.empty()) return true;
    const json::value* values_left = left.if_contains("enum");
    const json::value* values_right = right.if_contains("enum");
    if (values_left != nullptr && values_right != nullptr) {
      return merge_keyword("enum", *values_left, *values_right, path).get_array().empty();
    }
    if (common != std::vector<std::string_view>{"object"}) return false;
    // A property that both must have, and of which no value is of both.
    const auto required = [](const json::object& schema, std::string_view key) {
      const json::value* keys = schema.if_contains("required");
      return keys != nullptr && std::ranges::find(keys->get_array(), json::value(key)) != keys->get_array().end();
    };
    const json::value* properties_left = left.if_contains("properties");
    const json::value* properties_right = right.if_contains("properties");
    if (properties_left == nullptr || properties_right == nullptr) return false;
    for (const auto& [key, value] : properties_left->get_object()) {
      for (const json::object* schema : {&left, &right}) {
        if (const json::value* keys = schema->if_contains("required")) charge(keys->get_array().size(), path);
      }
      const json::value* other = properties_right->get_object().if_contains(key);
      if (other == nullptr || !required(left, key) || !required(right, key)) continue;
      if (are_disjoint(flatten(value, path, depth + 1), flatten(*other, path, depth + 1), path, depth + 1)) return true;
    }
    return false;
  }

  // --- bodies of rules

  std::string body_of(const json::value& schema, const std::string& path) {
    if (schema == false) return "[]";
    if (schema == true) return value_rule();
    const json::object& object = schema.get_object();
    if (const json::value* branches = object.if_contains("anyOf")) {
      json::object rest = object;
      rest.erase("anyOf");
      std::vector<std::string> alternatives;
      for (const json::value& branch : branches->get_array()) {
        alternatives.push_back(rule_of(rest.empty() ? branch : json::object{{"allOf", json::array{rest, branch}}}, path));
      }
      return joined(alternatives);
    }
    if (object.contains("enum")) return literals(object, path);
    std::vector<std::string> alternatives;
    const json::array types = types_of(object);
    for (const json::value& type : types) {
      const std::string_view name = type.get_string();
      // The numbers are among them.
      if (name == "integer" && std::ranges::find(types, json::value("number")) != types.end()) continue;
      alternatives.push_back(body_of_type(name, object, path));
    }
    return joined(alternatives);
  }

  std::string body_of_type(std::string_view type, const json::object& schema, const std::string& path) {
    if (type == "null") return "\"null\"";
    if (type == "boolean") return R"(("true" | "false"))";
    if (type == "integer" || type == "number") return number(schema, path, type == "integer");
    if (type == "string") return string(schema, path);
    if (type == "array") return array(schema, path);
    return object(schema, path);
  }

  // Values that are written out, those among them that the type allows. Whether they meet what else is said is not asked.
  static std::string literals(const json::object& schema, const std::string& path) {
    for (const auto& member : schema) {
      const std::string_view name = member.key();
      static constexpr std::array<std::string_view, 19> kAssertions = {
          "properties", "required",         "additionalProperties", "minProperties", "maxProperties", "items",   "prefixItems",
          "minItems",   "maxItems",         "uniqueItems",          "minLength",     "maxLength",     "pattern", "minimum",
          "maximum",    "exclusiveMinimum", "exclusiveMaximum",     "multipleOf",    "format"};
      if (has(kAssertions, name)) refuse(below(path, name), "beside \"enum\" or \"const\" is not served");
    }
    std::vector<std::string> alternatives;
    const json::value* type = schema.if_contains("type");
    const json::array types = type == nullptr ? json::array() : types_of(schema);
    for (const json::value& value : schema.at("enum").get_array()) {
      if (type != nullptr &&
          std::ranges::none_of(types, [&](const json::value& said) { return is_of_type(value, said.get_string()); }))
        continue;
      if (!is_finite(value)) refuse(below(path, "enum"), "has a number that is too large");
      std::string text;
      append_json(text, value);
      alternatives.push_back(gbnf_literal(text));
    }
    return joined(alternatives);
  }

  // --- numbers

  static std::string number(const json::object& schema, const std::string& path, bool is_integer) {
    if (const json::value* multiple = schema.if_contains("multipleOf")) {
      if (multiple->to_number<double>() != 1) refuse(below(path, "multipleOf"), "is served only as 1");
      is_integer = true;
    }
    Bounds bounds;
    const auto bound = [&](std::string_view name, bool is_low, bool excludes) {
      const json::value* value = schema.if_contains(name);
      if (value == nullptr) return;
      double limit = value->to_number<double>();
      bool is_excluded = excludes;
      if (is_integer) {
        // The nearest whole number inside.
        const double whole = is_low ? std::ceil(limit) : std::floor(limit);
        limit = is_excluded && whole == limit ? whole + (is_low ? 1 : -1) : whole;
        is_excluded = false;
      } else if (limit != std::trunc(limit)) {
        refuse(below(path, name), "is served for numbers only as a whole number");
      }
      constexpr double kEnd = static_cast<double>(kIntegerEnd);
      if (is_low ? limit <= -kEnd : limit >= kEnd) return;  // no number that we write is beyond
      if (is_low ? limit >= kEnd : limit <= -kEnd) refuse(below(path, name), "asks for numbers of more than 15 digits");
      std::optional<std::int64_t>& kept = is_low ? bounds.low : bounds.high;
      bool& kept_excluded = is_low ? bounds.low_excluded : bounds.high_excluded;
      const auto whole = static_cast<std::int64_t>(limit);
      const bool is_tighter = !kept || (is_low ? whole > *kept : whole < *kept) || (whole == *kept && is_excluded);
      if (!is_tighter) return;
      kept = whole;
      kept_excluded = is_excluded;
    };
    bound("minimum", true, false);
    bound("exclusiveMinimum", true, true);
    bound("maximum", false, false);
    bound("exclusiveMaximum", false, true);
    if (is_integer) return bounds.low && bounds.high && *bounds.low > *bounds.high ? joined({}) : integers(bounds);
    return numbers(bounds);
  }

  // --- strings

  std::string character_rule() {
    return shared("character",
                  R"([^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" ([0-9a-cA-CefEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2} | )"
                  R"([dD] [89abAB] [0-9a-fA-F]{2} "\\u" [dD] [c-fC-F] [0-9a-fA-F]{2})))");
  }

  static std::int64_t count(const json::object& schema, std::string_view name, std::int64_t otherwise) {
    const json::value* value = schema.if_contains(name);
    return value == nullptr ? otherwise : static_cast<std::int64_t>(std::min(value->to_number<double>(), 1e15));
  }

  std::string string(const json::object& schema, const std::string& path) {
    const std::int64_t min = count(schema, "minLength", 0);
    const std::int64_t max = count(schema, "maxLength", std::numeric_limits<std::int64_t>::max());
    const json::value* pattern = schema.if_contains("pattern");
    const json::value* format = schema.if_contains("format");
    if (pattern != nullptr && format != nullptr) refuse(below(path, "format"), "beside \"pattern\" is not served");
    if (pattern != nullptr || format != nullptr) {
      const std::string_view name = pattern != nullptr ? "pattern" : "format";
      const std::string_view said = (pattern != nullptr ? pattern : format)->get_string();
      const std::string_view text = pattern != nullptr ? said : format_pattern(said);
      if (text.empty() && pattern == nullptr) {
        refuse(
            below(path, name),
            std::format("\"{}\" is not served: date, time, date-time, duration, uuid, email, hostname, ipv4, ipv6 and uri are",
                        said));
      }
      const auto compiled = compile_pattern(text, character_rule());
      if (!compiled) refuse(below(path, name), compiled.error().message);
      const bool is_within =
          compiled->characters_min >= min &&
          (max == std::numeric_limits<std::int64_t>::max() || (compiled->characters_max && *compiled->characters_max <= max));
      if (!is_within) {
        refuse(below(path, name),
               "has texts that are shorter than minLength or longer than maxLength: say the length in the pattern");
      }
      return std::format(R"("\"" {} "\"")", compiled->gbnf);
    }
    if (min > kLengthMax) refuse(below(path, "minLength"), std::format("is served up to {}", kLengthMax));
    if (min > max) return joined({});
    if (schema.contains("maxLength"))
      return std::format(R"("\"" {}{{{},{}}} "\"")", character_rule(), min, std::min(max, kLengthMax));
    return std::format(R"("\"" {}{{{},}} "\"")", character_rule(), min);
  }

  // --- arrays

  std::string blank_rule() { return shared("blank", R"((" " | "\n" [ \t]{0,20})?)"); }

  std::string array(const json::object& schema, const std::string& path) {
    if (const json::value* unique = schema.if_contains("uniqueItems"); unique != nullptr && *unique == true) {
      if (count(schema, "maxItems", 2) > 1) refuse(below(path, "uniqueItems"), "is not served");
    }
    const json::value* prefix_value = schema.if_contains("prefixItems");
    const json::array prefix = prefix_value == nullptr ? json::array() : prefix_value->get_array();
    const json::value* items = schema.if_contains("items");
    const auto prefix_count = static_cast<std::int64_t>(prefix.size());
    const std::int64_t min = count(schema, "minItems", 0);
    const bool has_max = schema.contains("maxItems");
    // Items that nothing is said about come only where they must.
    const bool is_closed = items == nullptr ? !prefix.empty() && min <= prefix_count : *items == false;
    const std::int64_t max =
        is_closed ? std::min(prefix_count, count(schema, "maxItems", prefix_count)) : count(schema, "maxItems", kItemsMax);
    if (min > kItemsMax) refuse(below(path, "minItems"), std::format("is served up to {}", kItemsMax));
    if (min > max) return joined({});
    const std::string blank = blank_rule();
    const auto item = [&](std::int64_t i) {
      const auto index = static_cast<std::size_t>(i);
      if (i < prefix_count) return rule_of(prefix[index], below(path, "prefixItems", index));
      return items == nullptr ? value_rule() : rule_of(*items, below(path, "items"));
    };
    if (max == 0) return std::format(R"("[" {} "]")", blank);
    const std::string comma = std::format(R"("," {})", blank);
    // From the end: what may follow the items before.
    std::string rest;
    if (max > prefix_count) {
      const std::int64_t least = std::max<std::int64_t>(0, min - std::max<std::int64_t>(prefix_count, 1));
      const std::int64_t most = std::min(max, kItemsMax) - std::max<std::int64_t>(prefix_count, 1);
      const std::string more = std::format("({} {})", comma, item(prefix_count));
      rest = has_max ? std::format("{}{{{},{}}}", more, least, std::max(least, most)) : std::format("{}{{{},}}", more, least);
    }
    const std::int64_t single = std::max<std::int64_t>(std::min(max, prefix_count), 1);  // items that are written one by one
    for (std::int64_t i = single - 1; i >= 0; --i) {
      std::string here = i == 0 ? item(i) : std::format("{} {}", comma, item(i));
      const std::string from_here = rest.empty() ? here : std::format("{} {}", here, rest);
      const std::string rule = new_rule();
      define(rule, from_here);
      rest = i >= min ? rule + "?" : rule;
    }
    return std::format(R"("[" {0} {1} {0} "]")", blank, rest);
  }

  // --- objects

  std::string object(const json::object& schema, const std::string& path) {
    const json::value* properties_value = schema.if_contains("properties");
    json::object properties = properties_value == nullptr ? json::object() : properties_value->get_object();
    const json::value* additional = schema.if_contains("additionalProperties");
    std::set<std::string, std::less<>> required;
    if (const json::value* keys = schema.if_contains("required")) {
      for (const json::value& key : keys->get_array()) required.emplace(key.get_string());
    }
    // What must be there and is described nowhere is described by what holds for the rest.
    for (const std::string& key : required) {
      if (!properties.contains(key)) properties[key] = additional == nullptr ? json::value(true) : *additional;
    }
    // An object that lists its properties has no others, unless it says so.
    const bool is_open = additional == nullptr ? properties.empty() : *additional != false;
    check_counts(schema, path, properties.size(), required.size(), is_open);

    const std::string blank = blank_rule();
    const std::string comma = std::format(R"("," {})", blank);
    std::string rest;   // after a member
    std::string first;  // before any
    if (is_open) {
      const std::string value =
          additional == nullptr ? value_rule() : rule_of(*additional, below(path, "additionalProperties"));
      const std::string member = new_rule();
      define(member, std::format(R"({} ":" " "? {})", key_rule(properties), value));
      const std::int64_t most =
          std::min(count(schema, "maxProperties", kItemsMax), kItemsMax) - static_cast<std::int64_t>(properties.size());
      const bool has_max = schema.contains("maxProperties");
      rest = has_max ? std::format("({} {}){{0,{}}}", comma, member, std::max<std::int64_t>(most, 0))
                     : std::format("({} {})*", comma, member);
      const std::string others =
          has_max ? std::format("({} {}){{0,{}}}", comma, member, std::max<std::int64_t>(most - 1, 0)) : rest;
      const bool needs_one = count(schema, "minProperties", 0) > 0 && required.empty() && properties.empty();
      first = has_max && most < 1 ? "" : std::format("({} {}){}", member, others, needs_one ? "" : "?");
    }
    for (auto property = properties.end(); property != properties.begin();) {
      --property;
      const std::string key(property->key());
      const bool is_required = required.contains(key);
      const std::string member = new_rule();
      define(member, std::format(R"({} " "? {})", gbnf_literal(json::serialize(json::string_view(key)) + ":"),
                                 rule_of(property->value(), below(below(path, "properties"), key))));
      // Rules, so that the texts of what follows are not written out twice each time.
      const std::string first_rule = new_rule();
      const std::string alone = rest.empty() ? member : std::format("{} {}", member, rest);
      define(first_rule, is_required     ? alone
                         : first.empty() ? std::format("({})?", alone)
                                         : std::format("{} | {}", alone, first));
      const std::string rest_rule = new_rule();
      define(rest_rule, std::format("({} {}){} {}", comma, member, is_required ? "" : "?", rest));
      first = first_rule;
      rest = rest_rule;
    }
    if (first.empty()) return std::format(R"("{{" {} "}}")", blank);
    return std::format(R"("{{" {0} {1} {0} "}}")", blank, first);
  }

  static void check_counts(const json::object& schema, const std::string& path, std::size_t listed, std::size_t required,
                           bool is_open) {
    const auto min = static_cast<std::size_t>(count(schema, "minProperties", 0));
    if (min > required && !(min == 1 && listed == 0 && is_open)) {
      refuse(below(path, "minProperties"), "is served only as far as \"required\" makes sure of it");
    }
    const auto max = static_cast<std::size_t>(count(schema, "maxProperties", 1'000'000'000'000));
    if (max < listed)
      refuse(below(path, "maxProperties"), "is not served where it is less than the properties that are listed");
  }

  // Names of properties that are not listed: without escapes, so that no other way of writing is a listed one.
  std::string key_rule(const json::object& listed) {
    if (listed.empty()) return std::format(R"("\"" {}* "\"")", character_rule());
    // A tree of the listed names.
    struct Node {
      std::map<std::string, std::size_t> next;  // by character
      bool is_name = false;
    };
    std::vector<Node> nodes(1);
    for (const auto& member : listed) {
      std::size_t at = 0;
      const std::string_view key = member.key();
      for (std::size_t i = 0; i < key.size();) {
        std::size_t end = i + 1;
        while (end < key.size() && (static_cast<unsigned char>(key[end]) & 0xC0) == 0x80) ++end;
        const auto [next, is_new] = nodes[at].next.try_emplace(std::string(key.substr(i, end - i)), nodes.size());
        const std::size_t child = next->second;
        if (is_new) nodes.emplace_back();
        at = child;
        i = end;
      }
      nodes[at].is_name = true;
    }
    std::vector<std::string> rules;
    for (std::size_t i = 0; i < nodes.size(); ++i) rules.push_back(new_rule());
    const std::string any = shared("plain", R"([^"\\\x00-\x1f]*)");
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      // Here the name ends, another character follows, or one that a listed name has here.
      std::vector<std::string> alternatives;
      if (!nodes[i].is_name) alternatives.emplace_back("\"\"");
      std::string others = R"([^"\\\x00-\x1f)";
      for (const auto& [character, child] : nodes[i].next) {
        if (character == "\"" || character == "\\" || static_cast<unsigned char>(character[0]) < 0x20)
          continue;  // never written
        others += character == "]" || character == "-" || character == "^" ? "\\" + character : character;
        alternatives.push_back(std::format("{} {}", gbnf_literal(character), rules[child]));
      }
      alternatives.push_back(std::format("{}] {}", others, any));
      define(rules[i], joined(alternatives));
    }
    return std::format(R"("\"" {} "\"")", rules[0]);
  }

  // --- anything

  std::string value_rule() {
    if (shared_.insert("value").second) {
      const std::string blank = blank_rule();
      const std::string character = character_rule();
      define("json-value", std::format(R"(json-object | json-array | "\"" {}* "\"" | {} | "true" | "false" | "null")",
                                       character, numbers({})));
      define("json-object", std::format(R"("{{" {0} (json-member ("," {0} json-member)*)? {0} "}}")", blank));
      define("json-member", std::format(R"("\"" {}* "\":" " "? json-value)", character));
      define("json-array", std::format(R"("[" {0} (json-value ("," {0} json-value)*)? {0} "]")", blank));
    }
    return "json-value";
  }

  const json::value* root_ = nullptr;
  std::map<std::string, std::string> known_;  // the rule of each schema, by its text
  std::deque<Open> open_;
  std::set<std::string> shared_;
  std::size_t rules_count_ = 0;
  std::size_t flattened_ = 0;
  std::uint64_t work_ = 0;
};

JsonRules::JsonRules() : compiler_(std::make_unique<Compiler>()) {}
JsonRules::~JsonRules() = default;

const std::string& JsonRules::gbnf() const {
  return compiler_->gbnf;
}

Expected<std::string> JsonRules::add(std::string_view schema) {
  if (schema.size() > kSchemaBytesMax) {
    return fail(ErrorCode::proto_field,
                std::format("the schema has {} bytes, at most {} are read", schema.size(), kSchemaBytesMax));
  }
  if (!is_utf8(schema)) return fail(ErrorCode::proto_field, "the schema is not valid UTF-8");
  boost::system::error_code problem;
  const json::value root = wire::parse_json(schema, {}, problem);
  if (problem) return fail(ErrorCode::proto_field, "the schema is not JSON: " + problem.message());
  try {
    return compiler_->add(root);
  } catch (const Refusal& refusal) {
    return fail(ErrorCode::proto_field, std::format("{}: {}", refusal.path, refusal.what));
  }
}

Expected<std::string> json_schema_gbnf(std::string_view schema) {
  JsonRules rules;
  const auto root = rules.add(schema);
  if (!root) return std::unexpected(root.error());
  return std::format("root ::= {}\n{}", *root, rules.gbnf());
}

Expected<std::shared_ptr<const llm::Grammar>> json_schema_grammar(std::string_view schema) {
  const auto gbnf = json_schema_gbnf(schema);
  if (!gbnf) return std::unexpected(gbnf.error());
  auto grammar = llm::Grammar::parse(*gbnf);
  // What is wrong with it otherwise is its size.
  if (!grammar && grammar.error().message.contains("no finite text"))
    return fail(ErrorCode::proto_field, "no JSON value satisfies the schema");
  return grammar;
}

}  // namespace uma::capability
