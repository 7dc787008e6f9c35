#include "chat/parameter_types.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "chat/call_pattern.h"
#include "chat/loose_reader.h"
#include "json/field_reader.h"

namespace uma::chat {
namespace {

constexpr int kSchemaDepthMax = 8;
constexpr int kSchemaVisitsMax = 1000;  // Parts of all schemas of a tool; alternatives can refer to each other.
constexpr int kPartsMax = 256;          // The same, within objects and lists.
constexpr std::size_t kPathBytesMax = 512;

TypeSet type_named(std::string_view name) {
  if (name == "string") return {TypeSet::string};
  if (name == "integer") return {TypeSet::integer};
  if (name == "number") return {TypeSet::number};
  if (name == "boolean") return {TypeSet::boolean};
  if (name == "null") return {TypeSet::null};
  if (name == "array") return {TypeSet::array};
  if (name == "object") return {TypeSet::object};
  return {};
}

TypeSet type_of_value(const boost::json::value& value) {
  switch (value.kind()) {
    case boost::json::kind::null:
      return {TypeSet::null};
    case boost::json::kind::bool_:
      return {TypeSet::boolean};
    case boost::json::kind::int64:
    case boost::json::kind::uint64:
      return {TypeSet::integer};
    case boost::json::kind::double_:
      return {TypeSet::number};
    case boost::json::kind::string:
      return {TypeSet::string};
    case boost::json::kind::array:
      return {TypeSet::array};
    case boost::json::kind::object:
      break;
  }
  return {TypeSet::object};
}

void add_types(TypeSet& types, TypeSet more) {
  types.bits = static_cast<std::uint8_t>(types.bits | more.bits);
}

// What the schema refers to; null: nothing within `root`.
const boost::json::value* target_of(const boost::json::object& schema, const boost::json::value& root) {
  const boost::json::value* reference = schema.if_contains("$ref");
  if (reference == nullptr || !reference->is_string()) return nullptr;
  const std::string_view path = reference->get_string();
  boost::system::error_code problem;
  return path.starts_with('#') ? root.find_pointer(path.substr(1), problem) : nullptr;
}

TypeSet types_within(const boost::json::value& schema, const boost::json::value& root, int depth, int& visits) {
  TypeSet types;
  const boost::json::object* fields = schema.if_object();
  if (fields == nullptr || depth > kSchemaDepthMax || --visits < 0) return types;
  if (const boost::json::value* type = fields->if_contains("type")) {
    if (type->is_string()) add_types(types, type_named(type->get_string()));
    if (const boost::json::array* several = type->if_array()) {
      for (const boost::json::value& one : *several) {
        if (one.is_string()) add_types(types, type_named(one.get_string()));
      }
    }
    return types;
  }
  if (const boost::json::value* value = fields->if_contains("const")) return type_of_value(*value);
  if (const boost::json::value* values = fields->if_contains("enum"); values != nullptr && values->is_array()) {
    for (const boost::json::value& value : values->get_array()) add_types(types, type_of_value(value));
    return types;
  }
  for (const std::string_view key : {"anyOf", "oneOf", "allOf"}) {
    const boost::json::value* parts = fields->if_contains(key);
    if (parts == nullptr || !parts->is_array()) continue;
    for (const boost::json::value& part : parts->get_array()) add_types(types, types_within(part, root, depth + 1, visits));
  }
  if (const boost::json::value* target = target_of(*fields, root))
    add_types(types, types_within(*target, root, depth + 1, visits));
  if (types.bits == 0 && fields->contains("properties")) types.bits = TypeSet::object;
  if (types.bits == 0 && fields->contains("items")) types.bits = TypeSet::array;
  return types;
}

// Adds the types of the parts of what stands at `path`.
void add_parts(ParameterTypes& types, std::string_view path, const boost::json::value& schema, const boost::json::value& root,
               int depth, int& visits) {
  const boost::json::object* fields = resolved(schema, root).if_object();
  if (fields == nullptr || depth > kSchemaDepthMax) return;
  const auto add = [&](std::string_view name, const boost::json::value& part) {
    if (--visits < 0 || path.size() + name.size() >= kPathBytesMax) return;
    const std::string within = part_of(path, name);
    types.emplace(within, types_within(part, root, depth, visits));
    add_parts(types, within, part, root, depth + 1, visits);
  };
  if (const boost::json::value* items = fields->if_contains("items")) add("item", *items);
  const boost::json::value* properties = fields->if_contains("properties");
  if (properties != nullptr && properties->is_object()) {
    for (const auto& [name, property] : properties->get_object()) {
      if (visits < 0) return;
      add(name, property);
    }
  }
  for (const std::string_view key : {"anyOf", "oneOf", "allOf"}) {
    const boost::json::value* alternatives = fields->if_contains(key);
    if (alternatives == nullptr || !alternatives->is_array()) continue;
    for (const boost::json::value& one : alternatives->get_array()) {
      if (--visits < 0) return;
      add_parts(types, path, one, root, depth + 1, visits);
    }
  }
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

// The value as it is, if it is JSON of one of these types.
bool is_json_of(std::string_view text, TypeSet types) {
  boost::system::error_code problem;
  const boost::json::value value = json::parse(text, {}, problem);
  if (problem) return false;
  const TypeSet type = type_of_value(value);
  if (type.has(TypeSet::integer) && types.has(TypeSet::number)) return true;
  return (type.bits & types.bits) != 0;
}

}  // namespace

const boost::json::value& resolved(const boost::json::value& schema, const boost::json::value& root) {
  const boost::json::value* at = &schema;
  for (int depth = 0; depth < kSchemaDepthMax && at->is_object(); ++depth) {
    const boost::json::value* target = target_of(at->get_object(), root);
    if (target == nullptr) break;
    at = target;
  }
  return *at;
}

ParameterTypes parameter_types_of(const boost::json::value& schema) {
  ParameterTypes types;
  const boost::json::object* fields = schema.if_object();
  const boost::json::value* properties = fields == nullptr ? nullptr : fields->if_contains("properties");
  if (properties == nullptr || !properties->is_object()) return types;
  int visits = kSchemaVisitsMax;
  for (const auto& [name, property] : properties->get_object()) types.emplace(name, types_within(property, schema, 0, visits));
  int parts = kPartsMax;
  for (const auto& [name, property] : properties->get_object()) {
    if (parts < 0) break;
    add_parts(types, name, property, schema, 1, parts);
  }
  return types;
}

std::string part_of(std::string_view path, std::string_view name) {
  std::string part(path);
  if (path.size() > kPathBytesMax) return part;
  part += '\n';
  return part += name;
}

void append_json_text(std::string& json, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (c == '\n') {
      json += "\\n";
    } else if (c == '\t') {
      json += "\\t";
    } else if (byte < 0x20) {
      json += "\\u00";
      json += kHex[byte >> 4];
      json += kHex[byte & 0xf];
    } else {
      json += c;
    }
  }
}

std::string typed_json(std::string_view text, TypeSet types) {
  const std::string_view value = without_blanks(text);
  std::string word = lower(value.substr(0, 8));
  const bool is_null = word == "null" || word == "none";
  if (types.has(TypeSet::null) && is_null) return "null";
  if (!types.is_text()) {
    if (types.has(TypeSet::boolean) && (word == "true" || word == "false")) return word;
    if (is_json_of(value, types)) return std::string(value);
    if (types.has(TypeSet::array) || types.has(TypeSet::object)) {
      if (auto read = loose_json(value)) return std::move(*read);
    }
  }
  std::string json = "\"";
  append_json_text(json, text);
  return json + "\"";
}

}  // namespace uma::chat
