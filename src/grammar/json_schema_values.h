// Shared parts of the JSON Schema compiler: errors with their place, and the comparison of values.
#pragma once

#include <string>
#include <string_view>

#include <boost/json/value.hpp>

namespace uma::grammar {

// An error in a schema. Thrown, so that the code of the rules stays simple, and caught in JsonRules::add().
struct Refusal {
  std::string path;
  std::string what;
};

[[noreturn]] void refuse(const std::string& path, std::string what);

// The JSON pointer of a member, or of an element of a member.
[[nodiscard]] std::string below(const std::string& path, std::string_view name);
[[nodiscard]] std::string below(const std::string& path, std::string_view name, std::size_t index);

// Equality as in JSON Schema: 1 and 1.0 are equal.
[[nodiscard]] bool same_value(const boost::json::value& a, const boost::json::value& b);
// True for 1.0.
[[nodiscard]] bool is_whole(const boost::json::value& value);
[[nodiscard]] bool is_of_type(const boost::json::value& value, std::string_view type);
// Whether all numbers in the value are finite.
[[nodiscard]] bool is_finite(const boost::json::value& value);
// Requires: is_finite().
void append_json(std::string& out, const boost::json::value& value);

}  // namespace uma::grammar
