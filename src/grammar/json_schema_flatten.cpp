#include "grammar/json_schema_flatten.h"

#include <algorithm>
#include <array>
#include <format>
#include <numeric>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/text.h"
#include "grammar/json_schema_formats.h"
#include "grammar/json_schema_values.h"

namespace uma::grammar {
namespace {

constexpr int kFlattenDepthMax = 48;
constexpr std::size_t kFlattenedMax = 50'000;
constexpr std::size_t kBranchesMax = 256;
// Values that are read, compared or copied, for one schema and for all.
constexpr std::uint64_t kWorkMax = 1u << 20;
constexpr std::uint64_t kWorkOfAllMax = 2 * kWorkMax;

constexpr std::array<std::string_view, 7> kTypes = {"null", "boolean", "integer", "number", "string", "array", "object"};

// The keywords that are kept. A keyword that flatten_keyword() does not know is an annotation, or about the schema itself. A
// new keyword needs a row here, and a case in check_keyword(), merge_keyword() and types_of().
constexpr std::array<std::string_view, 28> kConstraints = {"type",
                                                           "enum",
                                                           "properties",
                                                           "required",
                                                           "additionalProperties",
                                                           "patternProperties",
                                                           "propertyNames",
                                                           "minProperties",
                                                           "maxProperties",
                                                           "items",
                                                           "prefixItems",
                                                           "minItems",
                                                           "maxItems",
                                                           "uniqueItems",
                                                           "minLength",
                                                           "maxLength",
                                                           "pattern",
                                                           kMorePatterns,
                                                           "format",
                                                           "minimum",
                                                           "maximum",
                                                           "exclusiveMinimum",
                                                           "exclusiveMaximum",
                                                           "multipleOf",
                                                           "unevaluatedProperties",
                                                           "contentMediaType",
                                                           "contentEncoding",
                                                           "contentSchema"};
constexpr std::array<std::string_view, 8> kUnsupported = {"not",           "dependentSchemas", "dependentRequired",
                                                          "dependencies",  "contains",         "$dynamicRef",
                                                          "$recursiveRef", "unevaluatedItems"};
template <std::size_t N>
bool has(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// Keywords that are null, such as the empty slices of programs in Go, count as absent.
boost::json::object without_nulls(const boost::json::object& schema) {
  boost::json::object rest;
  for (const auto& [key, value] : schema) {
    if (!value.is_null() || key == "const") rest[key] = value;
  }
  return rest;
}

}  // namespace

void SchemaFlattener::begin(const boost::json::value& root) {
  root_ = &root;
  flattened_ = 0;
  work_max_ = std::min(work_ + kWorkMax, kWorkOfAllMax);
}

void SchemaFlattener::charge(std::uint64_t units, const std::string& path) {
  work_ += units;
  if (work_ > work_max_) refuse(path, "is too large after merging");
}

void SchemaFlattener::charge_all_of(const boost::json::value& value, const std::string& path) {
  charge(1, path);
  if (value.is_string()) charge(value.get_string().size() / 32, path);
  if (value.is_array()) {
    for (const boost::json::value& element : value.get_array()) charge_all_of(element, path);
  }
  if (value.is_object()) {
    for (const auto& member : value.get_object()) charge_all_of(member.value(), path);
  }
}

// --- the schema without references and combinations

boost::json::value SchemaFlattener::flatten(const boost::json::value& schema, const std::string& path, int depth) {
  if (depth > kFlattenDepthMax) refuse(path, "references or combinations are nested without end");
  // References can reach the same schema repeatedly, twice as often at each level.
  if (++flattened_ > kFlattenedMax) refuse(path, "has too many combinations");
  if (schema.is_bool()) return schema;
  if (schema.is_null() && path != "#") return true;  // An empty pointer of a program in Go.
  if (!schema.is_object()) refuse(path, "a schema must be an object, true or false");
  charge_all_of(schema, path);
  const bool has_nulls = std::ranges::any_of(schema.get_object(), [](const auto& member) { return member.value().is_null(); });
  const boost::json::object rest = has_nulls ? without_nulls(schema.get_object()) : boost::json::object();
  const boost::json::object& object = has_nulls ? rest : schema.get_object();
  boost::json::object plain;
  std::vector<boost::json::value> parts;  // Further schemas that the value must satisfy.
  for (const auto& [key, value] : object) flatten_keyword(key, value, object, path, depth, plain, parts);
  if (const boost::json::value* nullable = object.if_contains("nullable"); nullable != nullptr && *nullable == true) {
    if (boost::json::value* type = plain.if_contains("type")) {
      boost::json::array types = type->is_array() ? type->get_array() : boost::json::array{*type};
      types.emplace_back("null");
      *type = types;
    }
  }
  boost::json::value whole = std::move(plain);
  for (const boost::json::value& part : parts) whole = merge(whole, part, path);
  close_unevaluated(whole, path);
  return whole;
}

void SchemaFlattener::flatten_keyword(boost::json::string_view key, const boost::json::value& value,
                                      const boost::json::object& schema, const std::string& path, int depth,
                                      boost::json::object& plain, std::vector<boost::json::value>& parts) {
  const std::string_view name = key;
  if (name == "$ref") {
    std::string target_path;
    const boost::json::value* target = resolve(value, path, target_path);
    if (target != nullptr) parts.push_back(flatten(*target, target_path, depth + 1));
  } else if (name == "allOf") {
    const boost::json::array& all = schemas_of(value, path, name);
    for (std::size_t i = 0; i < all.size(); ++i) parts.push_back(flatten(all[i], below(path, name, i), depth + 1));
  } else if (name == "anyOf") {
    parts.emplace_back(boost::json::object{{"anyOf", schemas_of(value, path, name)}});
  } else if (name == "oneOf") {
    const boost::json::array& one = schemas_of(value, path, name);
    if (!are_disjoint(one, path, depth)) left_out_.add(below(path, name), "a value may match several of its schemas");
    parts.emplace_back(boost::json::object{{"anyOf", one}});
  } else if (name == "const") {
    parts.emplace_back(boost::json::object{{"enum", boost::json::array{value}}});
  } else if (name == "nullable") {
    if (!value.is_bool()) refuse(below(path, name), "must be true or false");
    // OpenAPI 3.0: an addition to the type.
  } else if (name == "type") {
    add_type(value, path, plain);
  } else if (name == "required" && value.is_bool()) {
    // Draft 3: about the property that has this schema.
    if (value == true) left_out_.add(below(path, name), "must be an array of strings");
  } else if (name == "items" && value.is_array()) {
    // Until draft 2019-09.
    if (!value.get_array().empty()) plain["prefixItems"] = value;
    if (const boost::json::value* others = schema.if_contains("additionalItems")) plain["items"] = *others;
  } else if ((name == "exclusiveMinimum" || name == "exclusiveMaximum") && value.is_bool()) {
    // Draft 4 and OpenAPI 3.0: about the other bound.
    const std::string_view other = name == "exclusiveMinimum" ? "minimum" : "maximum";
    const boost::json::value* bound = schema.if_contains(other);
    if (bound == nullptr && value == true) refuse(below(path, name), "must be a number");
    if (bound != nullptr && value == true) {
      check_keyword(other, *bound, path);
      plain[name] = *bound;
    }
  } else if (name == "not" && (value == true || (value.is_object() && value.get_object().empty()))) {
    parts.emplace_back(false);
  } else if (name == "if") {
    const bool is_true = value == true || (value.is_object() && value.get_object().empty());
    const std::string_view decided = is_true ? "then" : "else";
    if (!is_true && value != false) {
      if (schema.contains("then") || schema.contains("else")) left_out_.add(below(path, name), "is not supported");
    } else if (const boost::json::value* branch = schema.if_contains(decided)) {
      parts.push_back(flatten(*branch, below(path, decided), depth + 1));
    }
  } else if (has(kUnsupported, name)) {
    leave_out_unsupported(name, value, path);
  } else if (has(kConstraints, name)) {
    check_keyword(name, value, path);
    plain[key] = value;
  }
}

// Types in other case are those of Gemini. What is no type constrains nothing.
void SchemaFlattener::add_type(const boost::json::value& value, const std::string& path, boost::json::object& plain) {
  boost::json::value type = value;
  bool is_known = true;
  const auto read = [&](boost::json::value& one) {
    if (!one.is_string()) return;
    const std::string name = lower_ascii(one.get_string());
    is_known &= has(kTypes, name);
    one = boost::json::string(name);
  };
  read(type);
  if (boost::json::array* several = type.if_array()) std::ranges::for_each(*several, read);
  check_keyword("type", type, path);
  if (is_known) {
    plain["type"] = std::move(type);
  } else {
    left_out_.add(below(path, "type"), "is none of JSON Schema's types");
  }
}

// `unevaluatedProperties` sees the properties of its own schema with its parts, and not those that are merged with it later.
void SchemaFlattener::close_unevaluated(boost::json::value& whole, const std::string& path) {
  boost::json::object* object = whole.if_object();
  const boost::json::value* unevaluated = object == nullptr ? nullptr : object->if_contains("unevaluatedProperties");
  if (unevaluated == nullptr) return;
  const bool is_closed = *unevaluated == false;
  const bool says_nothing = *unevaluated == true || *unevaluated == boost::json::object();
  object->erase("unevaluatedProperties");
  if (says_nothing || object->contains("additionalProperties")) return;
  if (is_closed && !object->contains("anyOf")) {
    (*object)["additionalProperties"] = false;
  } else {
    left_out_.add(below(path, "unevaluatedProperties"), "is supported as false only, and not beside anyOf and oneOf");
  }
}

void SchemaFlattener::leave_out_unsupported(std::string_view name, const boost::json::value& value, const std::string& path) {
  const bool is_empty = value.is_object() && value.get_object().empty();
  const bool says_nothing = name == "not" ? value == false : name != "contains" && (value == true || is_empty);
  if (!says_nothing) left_out_.add(below(path, name), "is not supported");
}

const boost::json::array& SchemaFlattener::schemas_of(const boost::json::value& value, const std::string& path,
                                                      std::string_view name) {
  if (!value.is_array() || value.get_array().empty()) refuse(below(path, name), "must be an array of schemas");
  if (value.get_array().size() > kBranchesMax) refuse(below(path, name), std::format("has more than {} schemas", kBranchesMax));
  return value.get_array();
}

const boost::json::value* SchemaFlattener::resolve(const boost::json::value& reference, const std::string& path,
                                                   std::string& target_path) {
  const std::string place = below(path, "$ref");
  if (!reference.is_string()) refuse(place, "must be a string");
  const std::string_view text = reference.get_string();
  const auto leave_out = [&](std::string_view why) {
    left_out_.add(place, std::format("\"{}\" {}", text, why));
    return nullptr;
  };
  if (!text.starts_with('#') || (text.size() > 1 && text[1] != '/'))
    return leave_out("is not supported: only references into the schema itself, such as \"#/$defs/name\"");
  if (has_own_id(path)) return leave_out("is relative to the $id of a part of the schema");
  const boost::json::value* at = root_;
  std::string_view rest = text.substr(1);
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('/', 1), rest.size());
    const std::string name = unescaped(rest.substr(1, end - 1));
    rest = rest.substr(end);
    const boost::json::value* next = part_of(*at, name);
    if (next == nullptr) refuse(place, std::format("\"{}\" is not in the schema", text));
    if (!rest.empty() && is_own_schema(*next)) return leave_out("refers into a part of the schema with its own $id");
    at = next;
  }
  target_path = std::string(text);
  return at;
}

// Whether a schema around the place, other than the whole, has an `$id`, to which references are relative.
bool SchemaFlattener::has_own_id(std::string_view path) {
  const boost::json::value* at = root_;
  path.remove_prefix(std::min(path.find('/'), path.size()));
  while (!path.empty() && at != nullptr) {
    const std::size_t end = std::min(path.find('/', 1), path.size());
    const std::string name = unescaped(path.substr(1, end - 1));
    path.remove_prefix(end);
    at = part_of(*at, name);
    if (at != nullptr && is_own_schema(*at)) return true;
  }
  return false;
}

bool SchemaFlattener::is_own_schema(const boost::json::value& schema) {
  const boost::json::object* object = schema.if_object();
  const boost::json::value* id = object == nullptr ? nullptr : object->if_contains("$id");
  return id != nullptr && id->is_string();
}

// The member or the item with this name; null: there is none.
const boost::json::value* SchemaFlattener::part_of(const boost::json::value& whole, const std::string& name) {
  if (const boost::json::object* object = whole.if_object()) return object->if_contains(name);
  const boost::json::array* array = whole.if_array();
  if (array == nullptr || name.empty() || name.size() >= 6 || name.find_first_not_of("0123456789") != std::string::npos)
    return nullptr;
  const auto index = static_cast<std::size_t>(std::stoul(name));
  return index < array->size() ? &(*array)[index] : nullptr;
}

std::string SchemaFlattener::unescaped(std::string_view token) {
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

void SchemaFlattener::check_keyword(std::string_view name, const boost::json::value& value, const std::string& path) {
  const auto must = [&](bool is_right, std::string_view what) {
    if (!is_right) refuse(below(path, name), std::format("must be {}", what));
  };
  const auto is_count = [&] { return is_whole(value) && value.to_number<double>() >= 0; };
  if (name == "type") {
    const auto is_type = [](const boost::json::value& type) { return type.is_string(); };
    must(is_type(value) || (value.is_array() && !value.get_array().empty() && std::ranges::all_of(value.get_array(), is_type)),
         "a type or an array of types");
  } else if (name == "enum") {
    must(value.is_array(), "an array");
  } else if (name == "properties") {
    must(value.is_object(), "an object of schemas");
  } else if (name == "required") {
    must(value.is_array() &&
             std::ranges::all_of(value.get_array(), [](const boost::json::value& key) { return key.is_string(); }),
         "an array of strings");
  } else if (name == "patternProperties") {
    must(value.is_object(), "an object of schemas");
  } else if (name == "prefixItems") {
    must(value.is_array() && !value.get_array().empty(), "an array of schemas");
  } else if (name == "minLength" || name == "maxLength" || name == "minItems" || name == "maxItems" ||
             name == "minProperties" || name == "maxProperties") {
    must(is_count(), "a whole number from 0");
  } else if (name == "minimum" || name == "maximum" || name == "exclusiveMinimum" || name == "exclusiveMaximum" ||
             name == "multipleOf") {
    must(value.is_number() && is_finite(value), "a number");
    if (name == "multipleOf") must(value.to_number<double>() > 0, "above 0");
  } else if (name == "pattern" || name == "format") {
    must(value.is_string(), "a string");
  } else if (name == kMorePatterns) {
    must(value.is_array() &&
             std::ranges::all_of(value.get_array(), [](const boost::json::value& pattern) { return pattern.is_string(); }),
         "an array of strings");
  } else if (name == "uniqueItems") {
    must(value.is_bool(), "true or false");
  }
}

boost::json::array SchemaFlattener::types_of(const boost::json::object& schema) {
  const boost::json::value* type = schema.if_contains("type");
  if (type != nullptr) return type->is_array() ? type->get_array() : boost::json::array{*type};
  // Without a type, keywords for one type also imply this type.
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 21> kMeans = {{{"properties", "object"},
                                                                                            {"required", "object"},
                                                                                            {"additionalProperties", "object"},
                                                                                            {"patternProperties", "object"},
                                                                                            {"propertyNames", "object"},
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
  boost::json::array types;
  for (const auto& [keyword, meant] : kMeans) {
    if (schema.contains(keyword) && std::ranges::find(types, boost::json::value(meant)) == types.end())
      types.emplace_back(meant);
  }
  if (types.empty()) types = {"null", "boolean", "number", "string", "array", "object"};
  return types;
}

// --- both of two schemas

boost::json::value SchemaFlattener::merge(const boost::json::value& a, const boost::json::value& b, const std::string& path) {
  if (a.is_bool()) return a.get_bool() ? b : a;
  if (b.is_bool()) return b.get_bool() ? a : b;
  charge_all_of(a, path);
  charge_all_of(b, path);
  boost::json::object both = a.get_object();
  const boost::json::object& left = a.get_object();
  const boost::json::object& right = b.get_object();
  if (left.empty()) return b;
  for (const auto& [key, value] : right) {
    const std::string_view name = key;
    if (name == "properties" || name == "additionalProperties" || name == "patternProperties" || name == "prefixItems" ||
        name == "items")
      continue;
    if (name == "pattern" && left.contains("pattern")) continue;
    boost::json::value* mine = both.if_contains(key);
    if (mine == nullptr) {
      both[key] = value;
    } else if (*mine != value) {
      *mine = merge_keyword(name, *mine, value, path);
    }
  }
  merge_patterns(both, left, right);
  merge_pattern_properties(both, left, right, path);
  merge_properties(both, left, right, path);
  merge_items(both, left, right);
  if (both.contains("enum") && left.contains("enum") && right.contains("enum") && both["enum"].get_array().empty())
    return false;
  return both;
}

boost::json::value SchemaFlattener::merge_keyword(std::string_view name, const boost::json::value& a,
                                                  const boost::json::value& b, const std::string& path) {
  if (name == "type") return merge_types(a, b, path);
  if (name == "enum") {
    charge(a.get_array().size() * b.get_array().size(), path);
    boost::json::array both;
    for (const boost::json::value& value : a.get_array()) {
      if (std::ranges::any_of(b.get_array(), [&](const boost::json::value& other) { return same_value(value, other); }))
        both.push_back(value);
    }
    return both;
  }
  if (name == "required") {
    boost::json::array both = a.get_array();
    std::unordered_set<std::string_view> known;
    for (const boost::json::value& key : a.get_array()) known.insert(key.get_string());
    for (const boost::json::value& key : b.get_array()) {
      if (known.insert(key.get_string()).second) both.push_back(key);
    }
    return both;
  }
  if (name == "anyOf") {
    charge(a.get_array().size() * b.get_array().size(), path);
    boost::json::array both;
    for (const boost::json::value& first : a.get_array()) {
      for (const boost::json::value& second : b.get_array())
        both.push_back(boost::json::object{{"allOf", boost::json::array{first, second}}});
    }
    if (both.size() > kBranchesMax) refuse(path, "has too many combinations of anyOf and oneOf");
    return both;
  }
  if (name == "uniqueItems") return a == true || b == true;
  if (name == "propertyNames" || name == "unevaluatedProperties") return both_of(a, b);
  if (name == "format") {
    if (format_pattern(a.get_string()).empty() || format_pattern(b.get_string()).empty())
      return format_pattern(a.get_string()).empty() ? b : a;
    left_out_.add(below(path, name), "is there twice");
    return a;
  }
  if (name == "multipleOf") {
    if (is_whole(a) && is_whole(b) && std::max(a.to_number<double>(), b.to_number<double>()) < 1e6)
      return std::lcm(a.to_number<std::int64_t>(), b.to_number<std::int64_t>());
    left_out_.add(below(path, name), "is there twice");
    return a;
  }
  const bool is_lower = name.starts_with("min") || name == "exclusiveMinimum";
  const bool is_upper = name.starts_with("max") || name == "exclusiveMaximum";
  if (is_lower || is_upper) {
    const bool a_is_less = a.to_number<double>() < b.to_number<double>();
    return a_is_less == is_lower ? b : a;
  }
  return a;  // kMorePatterns, which merge_patterns() has joined, and annotations.
}

// All patterns hold: the first is `pattern`.
void SchemaFlattener::merge_patterns(boost::json::object& both, const boost::json::object& left,
                                     const boost::json::object& right) {
  boost::json::array all;
  const auto add = [&](const boost::json::value& pattern) {
    if (std::ranges::find(all, pattern) == all.end()) all.push_back(pattern);
  };
  for (const boost::json::object* schema : {&left, &right}) {
    if (const boost::json::value* first = schema->if_contains("pattern")) add(*first);
    if (const boost::json::value* more = schema->if_contains(kMorePatterns)) std::ranges::for_each(more->get_array(), add);
  }
  if (all.empty()) return;
  both["pattern"] = all.front();
  all.erase(all.begin());
  both.erase(kMorePatterns);
  if (!all.empty()) both[kMorePatterns] = std::move(all);
}

bool SchemaFlattener::matches_key(std::string_view pattern, std::string_view key, const std::string& path) {
  constexpr std::uint64_t kUnits = 16;  // Reading a pattern and building its automaton.
  charge(kUnits + pattern.size() + key.size(), path);
  return matches_key_(pattern, key, below(path, "patternProperties"));
}

// A property that only one schema's patterns match is an additional one of the other, unless that lists it: then what the other
// says of additional ones is left out, since a pattern has one schema for all keys. Two different patterns are taken to match
// different keys.
void SchemaFlattener::merge_pattern_properties(boost::json::object& both, const boost::json::object& left,
                                               const boost::json::object& right, const std::string& path) {
  const auto lists_a_match = [&](const boost::json::object& schema, std::string_view pattern) {
    const boost::json::value* listed = schema.if_contains("properties");
    const boost::json::value* additional = schema.if_contains("additionalProperties");
    if (listed == nullptr || additional == nullptr || *additional == true) return false;
    return std::ranges::any_of(listed->get_object(),
                               [&](const auto& member) { return matches_key(pattern, std::string_view(member.key()), path); });
  };
  boost::json::object merged;
  const auto add_all = [&](const boost::json::object& from, const boost::json::object& other) {
    const boost::json::value* patterns = from.if_contains("patternProperties");
    if (patterns == nullptr) return;
    const boost::json::value* others = other.if_contains("patternProperties");
    for (const auto& [pattern, schema] : patterns->get_object()) {
      const boost::json::value* second = others == nullptr ? nullptr : others->get_object().if_contains(pattern);
      if (second == nullptr && lists_a_match(other, pattern)) {
        left_out_.add(below(path, "patternProperties"), "matches a property that is listed beside additionalProperties");
      } else if (second == nullptr) {
        second = other.if_contains("additionalProperties");
      }
      if (!merged.contains(pattern)) merged[pattern] = second == nullptr ? schema : both_of(schema, *second);
    }
  };
  add_all(left, right);
  add_all(right, left);
  if (!merged.empty()) both["patternProperties"] = std::move(merged);
}

boost::json::value SchemaFlattener::merge_types(const boost::json::value& a, const boost::json::value& b,
                                                const std::string& path) {
  const boost::json::array left = a.is_array() ? a.get_array() : boost::json::array{a};
  const boost::json::array right = b.is_array() ? b.get_array() : boost::json::array{b};
  charge(left.size() * right.size(), path);
  boost::json::array both;
  const auto add = [&](const boost::json::value& type) {
    if (std::ranges::find(both, type) == both.end()) both.push_back(type);
  };
  for (const boost::json::value& mine : left) {
    for (const boost::json::value& other : right) {
      if (mine == other) add(mine);
      if ((mine == "number" && other == "integer") || (mine == "integer" && other == "number")) add("integer");
    }
  }
  return both;
}

boost::json::value SchemaFlattener::both_of(const boost::json::value& a, const boost::json::value& b) {
  return a == b ? a : boost::json::value(boost::json::object{{"allOf", boost::json::array{a, b}}});
}

const boost::json::value* SchemaFlattener::additional_for(std::string_view key, const boost::json::object& schema,
                                                          const std::string& path) {
  const boost::json::value* additional = schema.if_contains("additionalProperties");
  const boost::json::value* patterns = schema.if_contains("patternProperties");
  if (additional == nullptr || patterns == nullptr) return additional;
  const bool has_pattern = std::ranges::any_of(
      patterns->get_object(), [&](const auto& member) { return matches_key(std::string_view(member.key()), key, path); });
  return has_pattern ? nullptr : additional;
}

void SchemaFlattener::merge_properties(boost::json::object& both, const boost::json::object& left,
                                       const boost::json::object& right, const std::string& path) {
  const boost::json::value* additional_left = left.if_contains("additionalProperties");
  const boost::json::value* additional_right = right.if_contains("additionalProperties");
  const boost::json::object empty;
  const auto properties_of = [&](const boost::json::object& schema) -> const boost::json::object& {
    const boost::json::value* properties = schema.if_contains("properties");
    return properties == nullptr ? empty : properties->get_object();
  };
  boost::json::object properties;
  for (const auto& [key, value] : properties_of(left)) {
    const boost::json::value* other = properties_of(right).if_contains(key);
    if (other == nullptr) other = additional_for(key, right, path);
    properties[key] = other == nullptr ? value : both_of(value, *other);
  }
  for (const auto& [key, value] : properties_of(right)) {
    if (properties.contains(key)) continue;
    const boost::json::value* other = additional_for(key, left, path);
    properties[key] = other == nullptr ? value : both_of(value, *other);
  }
  if (!properties.empty()) both["properties"] = properties;
  if (additional_left != nullptr && additional_right != nullptr) {
    both["additionalProperties"] = both_of(*additional_left, *additional_right);
  } else if (additional_right != nullptr) {
    both["additionalProperties"] = *additional_right;
  }
}

void SchemaFlattener::merge_items(boost::json::object& both, const boost::json::object& left,
                                  const boost::json::object& right) {
  const boost::json::value* items_left = left.if_contains("items");
  const boost::json::value* items_right = right.if_contains("items");
  const boost::json::array empty;
  const auto prefix_of = [&](const boost::json::object& schema) -> const boost::json::array& {
    const boost::json::value* prefix = schema.if_contains("prefixItems");
    return prefix == nullptr ? empty : prefix->get_array();
  };
  const boost::json::array& prefix_left = prefix_of(left);
  const boost::json::array& prefix_right = prefix_of(right);
  boost::json::array prefix;
  for (std::size_t i = 0; i < std::max(prefix_left.size(), prefix_right.size()); ++i) {
    const boost::json::value* mine = i < prefix_left.size() ? &prefix_left[i] : items_left;
    const boost::json::value* other = i < prefix_right.size() ? &prefix_right[i] : items_right;
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

// --- oneOf: as anyOf, if no value matches two schemas

bool SchemaFlattener::are_disjoint(const boost::json::array& branches, const std::string& path, int depth) {
  std::vector<boost::json::value> flat;
  for (std::size_t i = 0; i < branches.size(); ++i) flat.push_back(flatten(branches[i], below(path, "oneOf", i), depth + 1));
  for (std::size_t i = 0; i < flat.size(); ++i) {
    for (std::size_t j = i + 1; j < flat.size(); ++j) {
      if (!are_disjoint(flat[i], flat[j], path, depth + 1)) return false;
    }
  }
  return true;
}

bool SchemaFlattener::are_disjoint(const boost::json::value& a, const boost::json::value& b, const std::string& path,
                                   int depth) {
  if (depth > kFlattenDepthMax) return false;
  charge_all_of(a, path);
  charge_all_of(b, path);
  if (a == false || b == false) return true;
  if (!a.is_object() || !b.is_object()) return false;
  const boost::json::object& left = a.get_object();
  const boost::json::object& right = b.get_object();
  const auto are_branches_apart = [&](const boost::json::object& schema, const boost::json::value& other) {
    const boost::json::value* branches = schema.if_contains("anyOf");
    return branches != nullptr && std::ranges::all_of(branches->get_array(), [&](const boost::json::value& branch) {
             return are_disjoint(flatten(branch, path, depth + 1), other, path, depth + 1);
           });
  };
  if (are_branches_apart(left, b) || are_branches_apart(right, a)) return true;
  const auto may_be = [](const boost::json::object& schema, std::string_view type) {
    if (const boost::json::value* values = schema.if_contains("enum")) {
      if (std::ranges::none_of(values->get_array(), [&](const boost::json::value& value) { return is_of_type(value, type); }))
        return false;
    }
    const boost::json::value* types = schema.if_contains("type");
    if (types == nullptr) return true;
    const boost::json::array all = types->is_array() ? types->get_array() : boost::json::array{*types};
    return std::ranges::any_of(all, [&](const boost::json::value& given) {
      return std::string_view(given.get_string()) == type || (type == "number" && given == "integer");
    });
  };
  std::vector<std::string_view> common;
  for (const std::string_view type : {"null", "boolean", "number", "string", "array", "object"}) {
    if (may_be(left, type) && may_be(right, type)) common.push_back(type);
  }
  if (common.empty()) return true;
  const boost::json::value* values_left = left.if_contains("enum");
  const boost::json::value* values_right = right.if_contains("enum");
  if (values_left != nullptr && values_right != nullptr) {
    return merge_keyword("enum", *values_left, *values_right, path).get_array().empty();
  }
  if (common != std::vector<std::string_view>{"object"}) return false;
  // A property that both schemas require, without a common value.
  const auto required = [](const boost::json::object& schema, std::string_view key) {
    const boost::json::value* keys = schema.if_contains("required");
    return keys != nullptr && std::ranges::find(keys->get_array(), boost::json::value(key)) != keys->get_array().end();
  };
  // A property that one requires and the other excludes.
  const auto excludes = [&](const boost::json::object& schema, const boost::json::object& other) {
    const boost::json::value* keys = other.if_contains("required");
    const boost::json::value* additional = schema.if_contains("additionalProperties");
    if (keys == nullptr || additional == nullptr || *additional != false || schema.contains("patternProperties")) return false;
    const boost::json::value* listed = schema.if_contains("properties");
    charge(keys->get_array().size(), path);
    return std::ranges::any_of(keys->get_array(), [&](const boost::json::value& key) {
      return listed == nullptr || !listed->get_object().contains(key.get_string());
    });
  };
  if (excludes(left, right) || excludes(right, left)) return true;
  const boost::json::value* properties_left = left.if_contains("properties");
  const boost::json::value* properties_right = right.if_contains("properties");
  if (properties_left == nullptr || properties_right == nullptr) return false;
  for (const auto& [key, value] : properties_left->get_object()) {
    for (const boost::json::object* schema : {&left, &right}) {
      if (const boost::json::value* keys = schema->if_contains("required")) charge(keys->get_array().size(), path);
    }
    const boost::json::value* other = properties_right->get_object().if_contains(key);
    if (other == nullptr || !required(left, key) || !required(right, key)) continue;
    if (are_disjoint(flatten(value, path, depth + 1), flatten(*other, path, depth + 1), path, depth + 1)) return true;
  }
  return false;
}

}  // namespace uma::grammar
