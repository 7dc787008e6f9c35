#include "uma-cli/fields.h"

#include <boost/json/value.hpp>

namespace uma::cli {

std::string text_field(const boost::json::object& object, std::string_view name) {
  const boost::json::value* value = object.if_contains(name);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : "";
}

std::int64_t int_field(const boost::json::object& object, std::string_view name) {
  return static_cast<std::int64_t>(number_field(object, name));
}

double number_field(const boost::json::object& object, std::string_view name) {
  const boost::json::value* value = object.if_contains(name);
  if (value == nullptr) return 0;
  if (value->is_int64()) return static_cast<double>(value->get_int64());
  if (value->is_uint64()) return static_cast<double>(value->get_uint64());
  return value->is_double() ? value->get_double() : 0;
}

bool bool_field(const boost::json::object& object, std::string_view name) {
  const boost::json::value* value = object.if_contains(name);
  return value != nullptr && value->is_bool() && value->get_bool();
}

const boost::json::object& object_field(const boost::json::object& object, std::string_view name) {
  static const boost::json::object kNone;
  const boost::json::value* value = object.if_contains(name);
  return value != nullptr && value->is_object() ? value->get_object() : kNone;
}

const boost::json::array& array_field(const boost::json::object& object, std::string_view name) {
  static const boost::json::array kNone;
  const boost::json::value* value = object.if_contains(name);
  return value != nullptr && value->is_array() ? value->get_array() : kNone;
}

}  // namespace uma::cli
