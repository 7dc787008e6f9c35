// Reads fields of the daemon's answers. A missing field, or one of another type, reads as its neutral value, so that an older
// or newer daemon shows less instead of breaking the view.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

namespace uma::cli {

[[nodiscard]] std::string text_field(const boost::json::object& object, std::string_view name);
[[nodiscard]] std::int64_t int_field(const boost::json::object& object, std::string_view name);
[[nodiscard]] double number_field(const boost::json::object& object, std::string_view name);
[[nodiscard]] bool bool_field(const boost::json::object& object, std::string_view name);
// The field's object or array; empty if it is missing or of another type. Borrowed from `object`.
[[nodiscard]] const boost::json::object& object_field(const boost::json::object& object, std::string_view name);
[[nodiscard]] const boost::json::array& array_field(const boost::json::object& object, std::string_view name);

}  // namespace uma::cli
