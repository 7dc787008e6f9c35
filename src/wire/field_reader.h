// Reads the fields of one JSON object by name, type and range, and keeps the first thing that is wrong as a sentence with the
// field's name: field "max_tokens" must be an integer, got string. After a failure every read returns nothing, so a decoder
// reads all its fields in a row and asks once. Absent and null are the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <boost/system/error_code.hpp>

#include "core/error.h"

namespace uma::wire {

inline constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();

// What a client sent, at most kJsonDepthMax deep. Invalid UTF-8 goes through: each string that is used is checked, so that the
// answer can name the field.
[[nodiscard]] boost::json::value parse_json(std::string_view text, boost::json::storage_ptr memory,
                                            boost::system::error_code& problem);

struct TextBytes {
  std::size_t min = 0;
  std::size_t max = SIZE_MAX;
};

struct NumberRange {
  double low;
  double high;
  bool low_excluded = false;
  bool high_excluded = false;
};

class FieldReader {
 public:
  // Borrows `object`, which must outlive the reader. `path` goes before the names in messages: "messages[2].".
  explicit FieldReader(const boost::json::object& object, std::string path = "") : object_(object), path_(std::move(path)) {}

  [[nodiscard]] bool ok() const { return !error_.has_value(); }
  // Requires !ok().
  [[nodiscard]] Error take_error();
  // The field that the error is about, with its path ("messages[2].role"); empty where it is about none.
  [[nodiscard]] const std::string& failed_field() const { return failed_field_; }
  // What goes before the names of its fields.
  [[nodiscard]] const std::string& path() const { return path_; }
  // Records `error` unless one is recorded already.
  void fail_with(Error error);
  // As fail_with, with what went wrong inside an object of this one. Requires !inner.ok().
  void fail_as(FieldReader& inner);
  // As fail_with, with the message: field "NAME" WHAT_IS_WRONG.
  void fail_field(std::string_view name, std::string_view what_is_wrong, ErrorCode code = ErrorCode::proto_field);

  // Null and absent fields, and every field after a failure, are nullptr.
  [[nodiscard]] const boost::json::value* find(std::string_view name) const;

  // UTF-8 without NUL characters.
  std::optional<std::string> text(std::string_view name, TextBytes bytes = {});
  // As text; a missing field is a failure.
  std::string required_text(std::string_view name, TextBytes bytes = {});
  std::optional<bool> boolean(std::string_view name);
  // Whole numbers, 1e3 and 10.0 among them.
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t low, std::int64_t high);
  std::optional<std::uint64_t> unsigned_integer(std::string_view name);
  std::optional<double> number(std::string_view name, NumberRange range);
  const boost::json::array* array(std::string_view name);
  const boost::json::object* object(std::string_view name);

  // Checks a string that is inside the field called `name`; as text().
  std::optional<std::string> checked_text(std::string_view name, const boost::json::value& value, TextBytes bytes);
  std::optional<double> checked_number(std::string_view name, const boost::json::value& value, NumberRange range);

 private:
  void fail_type(std::string_view name, std::string_view wanted, const boost::json::value& got);

  const boost::json::object& object_;
  const std::string path_;
  std::optional<Error> error_;
  std::string failed_field_;
};

}  // namespace uma::wire
