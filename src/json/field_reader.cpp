#include "json/field_reader.h"

#include <cmath>
#include <format>
#include <limits>
#include <utility>

#include <boost/json/error.hpp>
#include <boost/json/parse.hpp>

#include "base/check.h"
#include "base/utf8.h"

namespace uma::json {
namespace {

std::string_view kind_name(const boost::json::value& value) {
  switch (value.kind()) {
    case boost::json::kind::null:
      return "null";
    case boost::json::kind::bool_:
      return "boolean";
    case boost::json::kind::int64:
    case boost::json::kind::uint64:
    case boost::json::kind::double_:
      return "number";
    case boost::json::kind::string:
      return "string";
    case boost::json::kind::array:
      return "array";
    case boost::json::kind::object:
      break;
  }
  return "object";
}

// The integer `value`, saturated to int64; nothing for other types and fractions.
std::optional<std::int64_t> saturated_integer(const boost::json::value& value) {
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  if (value.is_int64()) return value.get_int64();
  if (value.is_uint64()) return kMax;  // The parser uses uint64 only for numbers beyond int64.
  if (!value.is_double()) return std::nullopt;
  const double number = value.get_double();
  if (std::isnan(number) || (std::isfinite(number) && number != std::trunc(number))) return std::nullopt;
  if (number >= 0x1.0p63) return kMax;
  if (number < -0x1.0p63) return kMin;
  return static_cast<std::int64_t>(number);
}

std::optional<double> as_double(const boost::json::value& value) {
  if (value.is_int64()) return static_cast<double>(value.get_int64());
  if (value.is_uint64()) return static_cast<double>(value.get_uint64());
  if (value.is_double()) return value.get_double();
  return std::nullopt;
}

std::string describe(NumberRange range) {
  return std::format("{} {} {} {}", range.low_excluded ? "above" : "at least", range.low,
                     range.high_excluded ? "and below" : "and at most", range.high);
}

bool is_within(double value, NumberRange range) {
  const bool above = range.low_excluded ? value > range.low : value >= range.low;
  const bool below = range.high_excluded ? value < range.high : value <= range.high;
  return above && below;  // False for NaN.
}

// Whether there may be more than kValuesMax values: each but the first stands behind a comma or the beginning of its container.
bool has_too_many_values(std::string_view text) {
  if (text.size() <= kValuesMax) return false;
  std::size_t values = 1;
  bool is_in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      is_in_string = !is_in_string;
    } else if (!is_in_string && (c == ',' || c == '[' || c == '{')) {
      ++values;
    }
  }
  return values > kValuesMax;
}

}  // namespace

boost::json::value parse(std::string_view text, boost::json::storage_ptr memory, boost::system::error_code& problem) {
  if (has_too_many_values(text)) {
    problem = boost::json::error::array_too_large;
    return {};
  }
  boost::json::parse_options options;
  options.max_depth = kDepthMax;
  options.allow_invalid_utf8 = true;
  return boost::json::parse(boost::json::string_view(text.data(), text.size()), problem, std::move(memory), options);
}

Error FieldReader::take_error() {
  UMA_CHECK(error_.has_value());
  return std::move(*error_);
}

void FieldReader::fail_with(Error error) {
  if (ok()) error_ = std::move(error);
}

void FieldReader::fail_as(FieldReader& inner) {
  if (!ok()) return;
  failed_field_ = inner.failed_field();
  error_ = inner.take_error();
}

void FieldReader::fail_field(std::string_view name, std::string_view what_is_wrong, ErrorCode code) {
  if (!ok()) return;
  failed_field_ = std::format("{}{}", path_, name);
  fail_with({code, std::format("field \"{}{}\" {}", path_, name, what_is_wrong)});
}

void FieldReader::fail_type(std::string_view name, std::string_view wanted, const boost::json::value& got) {
  fail_field(name, std::format("must be {}, got {}", wanted, kind_name(got)));
}

const boost::json::value* FieldReader::find(std::string_view name) const {
  if (!ok()) return nullptr;
  const boost::json::value* value = object_.if_contains(boost::json::string_view(name.data(), name.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

bool FieldReader::is_null(std::string_view name) const {
  const boost::json::value* value = object_.if_contains(boost::json::string_view(name.data(), name.size()));
  return value != nullptr && value->is_null();
}

std::optional<std::string> FieldReader::text(std::string_view name, TextBytes bytes) {
  const boost::json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  return checked_text(name, *value, bytes);
}

std::string FieldReader::required_text(std::string_view name, TextBytes bytes) {
  if (ok() && find(name) == nullptr) fail_field(name, "is required");
  return text(name, bytes).value_or("");
}

std::optional<std::string> FieldReader::checked_text(std::string_view name, const boost::json::value& value, TextBytes bytes) {
  const boost::json::string* string = value.if_string();
  if (string == nullptr) {
    fail_type(name, "a string", value);
    return std::nullopt;
  }
  const std::string_view text(string->data(), string->size());
  if (text.size() < bytes.min) {
    fail_field(name, "must not be empty");
  } else if (text.size() > bytes.max) {
    fail_field(name, std::format("is {} bytes, at most {} are accepted", text.size(), bytes.max));
  } else if (text.contains('\0')) {
    fail_field(name, "must not contain NUL characters");
  } else if (!is_utf8(text)) {
    fail_field(name, "is not valid UTF-8");
  } else {
    return std::string(text);
  }
  return std::nullopt;
}

std::optional<bool> FieldReader::boolean(std::string_view name) {
  const boost::json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_bool()) return value->get_bool();
  fail_type(name, "true or false", *value);
  return std::nullopt;
}

std::optional<std::int64_t> FieldReader::integer(std::string_view name, std::int64_t low, std::int64_t high) {
  const boost::json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<std::int64_t> whole = saturated_integer(*value);
  if (!whole) {
    if (value->is_double()) {
      fail_field(name, "must be an integer, got a number with a fraction");
    } else {
      fail_type(name, "an integer", *value);
    }
    return std::nullopt;
  }
  if (*whole < low || *whole > high) {
    fail_field(name, high == std::numeric_limits<std::int64_t>::max() ? std::format("must be at least {}", low)
                                                                      : std::format("must be {} to {}", low, high));
    return std::nullopt;
  }
  return whole;
}

std::optional<std::uint64_t> FieldReader::unsigned_integer(std::string_view name) {
  const boost::json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_uint64()) return value->get_uint64();
  const std::optional<std::int64_t> whole =
      integer(name, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max());
  if (!whole) return std::nullopt;
  if (*whole < 0 || (value->is_double() && *whole == std::numeric_limits<std::int64_t>::max())) {
    fail_field(name, std::format("must be 0 to {}", std::numeric_limits<std::uint64_t>::max()));
    return std::nullopt;
  }
  return static_cast<std::uint64_t>(*whole);
}

std::optional<double> FieldReader::number(std::string_view name, NumberRange range) {
  const boost::json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  return checked_number(name, *value, range);
}

std::optional<double> FieldReader::checked_number(std::string_view name, const boost::json::value& value, NumberRange range) {
  const std::optional<double> number = as_double(value);
  if (!number) {
    fail_type(name, "a number", value);
    return std::nullopt;
  }
  if (!is_within(*number, range)) {
    fail_field(name, std::format("must be {}", describe(range)));
    return std::nullopt;
  }
  return number;
}

const boost::json::array* FieldReader::array(std::string_view name) {
  const boost::json::value* value = find(name);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) fail_type(name, "an array", *value);
  return value->if_array();
}

const boost::json::object* FieldReader::object(std::string_view name) {
  const boost::json::value* value = find(name);
  if (value == nullptr) return nullptr;
  if (!value->is_object()) fail_type(name, "an object", *value);
  return value->if_object();
}

}  // namespace uma::json
