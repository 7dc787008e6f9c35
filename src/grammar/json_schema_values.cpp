#include "grammar/json_schema_values.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <utility>

#include <boost/json/serialize.hpp>

namespace uma::grammar {
namespace {

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

}  // namespace

void refuse(const std::string& path, std::string what) {
  throw Refusal{path, std::move(what)};
}

bool same_value(const boost::json::value& a, const boost::json::value& b) {
  if (a.is_number() && b.is_number()) return a.to_number<double>() == b.to_number<double>();
  if (a.kind() != b.kind()) return false;
  if (a.is_array()) {
    return std::ranges::equal(a.get_array(), b.get_array(), same_value);
  }
  if (a.is_object()) {
    const boost::json::object& left = a.get_object();
    const boost::json::object& right = b.get_object();
    return left.size() == right.size() && std::ranges::all_of(left, [&](const auto& member) {
             const boost::json::value* other = right.if_contains(member.key());
             return other != nullptr && same_value(member.value(), *other);
           });
  }
  return a == b;
}

bool is_whole(const boost::json::value& value) {
  if (value.is_int64() || value.is_uint64()) return true;
  return value.is_double() && std::isfinite(value.get_double()) && value.get_double() == std::trunc(value.get_double());
}

bool is_of_type(const boost::json::value& value, std::string_view type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_bool();
  if (type == "integer") return is_whole(value);
  if (type == "number") return value.is_number();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  return value.is_object();
}

bool is_finite(const boost::json::value& value) {
  if (value.is_double()) return std::isfinite(value.get_double());
  if (value.is_array()) return std::ranges::all_of(value.get_array(), is_finite);
  if (value.is_object())
    return std::ranges::all_of(value.get_object(), [](const auto& member) { return is_finite(member.value()); });
  return true;
}

void append_json(std::string& out, const boost::json::value& value) {
  if (value.is_double()) {
    // The shortest digits, in which JSON and std::format agree.
    out += std::format("{}", value.get_double());
  } else if (value.is_array()) {
    out += '[';
    for (bool is_first = true; const boost::json::value& item : value.get_array()) {
      if (!std::exchange(is_first, false)) out += ',';
      append_json(out, item);
    }
    out += ']';
  } else if (value.is_object()) {
    out += '{';
    for (bool is_first = true; const auto& [key, member] : value.get_object()) {
      if (!std::exchange(is_first, false)) out += ',';
      out += boost::json::serialize(boost::json::string_view(key));
      out += ':';
      append_json(out, member);
    }
    out += '}';
  } else {
    out += boost::json::serialize(value);
  }
}

std::string below(const std::string& path, std::string_view name) {
  return path + "/" + pointer_token(name);
}
std::string below(const std::string& path, std::string_view name, std::size_t index) {
  return std::format("{}/{}/{}", path, pointer_token(name), index);
}

}  // namespace uma::grammar
