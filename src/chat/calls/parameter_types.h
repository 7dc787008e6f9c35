// The JSON types of a tool's parameters, by its schema, and values that models write as text without types.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include <boost/json/fwd.hpp>

namespace uma::chat {

// A set of JSON types.
struct TypeSet {
  enum Bit : std::uint8_t { string = 1, integer = 2, number = 4, boolean = 8, null = 16, array = 32, object = 64 };
  std::uint8_t bits = 0;  // 0: unknown.

  [[nodiscard]] bool has(Bit bit) const { return (bits & bit) != 0; }
  // Whether a value is written as it is, without quotes: texts, and values of unknown type.
  [[nodiscard]] bool is_text() const { return bits == 0 || has(string); }
  bool operator==(const TypeSet&) const = default;
};

// The schema that this one refers to within `root`; itself if it refers to none.
[[nodiscard]] const boost::json::value& resolved(const boost::json::value& schema, const boost::json::value& root);

// The types that a part of the schema `root` allows, as far as 32 alternatives and references say them.
[[nodiscard]] TypeSet schema_types(const boost::json::value& schema, const boost::json::value& root);

// The types of parameters by name, as their schemas' types, values, alternatives and references within the tool's schema allow;
// a tool without a schema has none. The first parts of objects and lists have types too, by their path (part_of); the items of
// a list are named "item".
using ParameterTypes = std::map<std::string, TypeSet, std::less<>>;
// The path of a part of what stands at `path`; paths beyond 512 bytes, which have no types, do not grow.
[[nodiscard]] std::string part_of(std::string_view path, std::string_view name);
[[nodiscard]] ParameterTypes parameter_types_of(const boost::json::value& schema);

// The JSON of a value that a model wrote as `text` for a parameter of these types: a text stays as it is, unless it is the word
// null and may be; anything else is JSON, or a literal of Python. What is neither becomes a string.
[[nodiscard]] std::string typed_json(std::string_view text, TypeSet types);

// Appends `text` as the inside of a JSON string. Requires: valid UTF-8.
void append_json_text(std::string& json, std::string_view text);

}  // namespace uma::chat
