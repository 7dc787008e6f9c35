#include "chat/calls/parameter_types.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <deque>
#include <optional>
#include <utility>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "base/text.h"
#include "chat/calls/call_pattern.h"
#include "chat/calls/loose_reader.h"
#include "json/field_reader.h"

namespace uma::chat {
namespace {

constexpr int kSchemaDepthMax = 8;
constexpr int kSchemaVisitsMax = 1000;  // Parts of all schemas of a tool; alternatives can refer to each other.
constexpr int kPartsMax = 256;          // Parts of a tool's schemas within objects and lists.
constexpr std::size_t kPathBytesMax = 512;
constexpr std::size_t kReferenceBytesMax = 1024;  // Following a reference takes time for each of its bytes.

TypeSet type_named(std::string_view written) {
  const std::string name = lower_ascii(written);
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

// The value that the schema refers to; null: nothing within `root`, or the reference is too long.
const boost::json::value* target_of(const boost::json::object& schema, const boost::json::value& root) {
  const boost::json::value* reference = schema.if_contains("$ref");
  if (reference == nullptr || !reference->is_string()) return nullptr;
  const std::string_view path = reference->get_string();
  boost::system::error_code problem;
  const bool is_within = path.starts_with('#') && path.size() <= kReferenceBytesMax;
  return is_within ? root.find_pointer(path.substr(1), problem) : nullptr;
}

TypeSet types_within(const boost::json::value& schema, const boost::json::value& root, int depth, int& visits) {
  TypeSet types;
  const boost::json::object* fields = schema.if_object();
  if (fields == nullptr || depth > kSchemaDepthMax || --visits < 0) return types;
  if (const boost::json::value* type = fields->if_contains("type"); type != nullptr && !type->is_null()) {
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
  const auto has = [&](std::string_view key) {
    const boost::json::value* value = fields->if_contains(key);
    return value != nullptr && !value->is_null();
  };
  if (types.bits == 0 && has("properties")) types.bits = TypeSet::object;
  if (types.bits == 0 && has("items")) types.bits = TypeSet::array;
  return types;
}

// Whether the schema may have parts that have types of their own.
bool may_have_parts(const boost::json::value& schema) {
  const boost::json::object* fields = schema.if_object();
  return fields != nullptr &&
         std::ranges::any_of(std::to_array<std::string_view>({"$ref", "items", "properties", "anyOf", "oneOf", "allOf"}),
                             [&](std::string_view key) { return fields->contains(key); });
}

// Adds the types of the parts of parameters, the outer ones first, so that no parameter takes the limit of all others.
class PartTypes {
 public:
  PartTypes(ParameterTypes& types, const boost::json::value& root) : types_(types), root_(root) {}

  // Adds a schema whose parts have types below `path`. False: the limit is reached.
  bool add_schema(std::string_view path, const boost::json::value& schema, int depth) {
    if (depth > kSchemaDepthMax || !may_have_parts(schema)) return true;
    if (--parts_ < 0) return false;
    open_.push_back({std::string(path), &schema, depth});
    return true;
  }

  void add_parts() {
    for (; !open_.empty(); open_.pop_front()) {
      const boost::json::value& schema = resolved(*open_.front().schema, root_);
      if (const boost::json::object* fields = schema.if_object()) add_parts_of(open_.front(), *fields);
    }
  }

 private:
  struct Open {
    std::string path;
    const boost::json::value* schema;
    int depth;
  };

  // `open` is the first of open_, which stays where it is while others are added behind it.
  void add_parts_of(const Open& open, const boost::json::object& fields) {
    if (const boost::json::value* items = fields.if_contains("items"); items != nullptr && !add_part(open, "item", *items))
      return;
    const boost::json::value* properties = fields.if_contains("properties");
    if (properties != nullptr && properties->is_object()) {
      for (const auto& [name, property] : properties->get_object()) {
        if (!add_part(open, name, property)) return;
      }
    }
    for (const std::string_view key : {"anyOf", "oneOf", "allOf"}) {
      const boost::json::value* alternatives = fields.if_contains(key);
      if (alternatives == nullptr || !alternatives->is_array()) continue;
      for (const boost::json::value& one : alternatives->get_array()) {
        if (!add_schema(open.path, one, open.depth + 1)) return;
      }
    }
  }

  // False: the limit is reached.
  bool add_part(const Open& open, std::string_view name, const boost::json::value& part) {
    if (--parts_ < 0) return false;
    if (open.path.size() + name.size() >= kPathBytesMax) return true;
    std::string path = part_of(open.path, name);
    types_.emplace(path, types_within(part, root_, open.depth, visits_));
    if (open.depth < kSchemaDepthMax && may_have_parts(part)) open_.push_back({std::move(path), &part, open.depth + 1});
    return true;
  }

  ParameterTypes& types_;
  const boost::json::value& root_;
  int parts_ = kPartsMax;
  int visits_ = kSchemaVisitsMax;
  std::deque<Open> open_;
};

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

TypeSet schema_types(const boost::json::value& schema, const boost::json::value& root) {
  int visits = 32;
  return types_within(schema, root, 0, visits);
}

ParameterTypes parameter_types_of(const boost::json::value& schema) {
  ParameterTypes types;
  const boost::json::object* fields = schema.if_object();
  const boost::json::value* properties = fields == nullptr ? nullptr : fields->if_contains("properties");
  if (properties == nullptr || !properties->is_object()) return types;
  int visits = kSchemaVisitsMax;
  for (const auto& [name, property] : properties->get_object()) types.emplace(name, types_within(property, schema, 0, visits));
  PartTypes parts(types, schema);
  for (const auto& [name, property] : properties->get_object()) {
    if (!parts.add_schema(name, property, 1)) break;
  }
  parts.add_parts();
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
  std::string word = lower_ascii(value.substr(0, 8));
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
