// Reads the fields of one JSON object by name, type and range, and keeps the first error as a message with the field's name:
// field "max_tokens" must be an integer, got string. After an error every read returns nothing, so a decoder reads all its
// fields in a row and checks once. Absent and null are equal.
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

namespace uma::json {

inline constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
inline constexpr std::size_t kDepthMax = 128;

// The most values of one text: a million tokens, and as many beside them. The objects of more would take gigabytes.
inline constexpr std::size_t kValuesMax = 2'000'000;

// Parses a client's JSON, at most kDepthMax deep and with at most kValuesMax values (else array_too_large). Invalid UTF-8 is
// accepted; each used string is checked later, so that the error can name the field.
[[nodiscard]] boost::json::value parse(std::string_view text, boost::json::storage_ptr memory,
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
  // Borrows `object`, which must outlive the reader. `path` precedes the names in messages: "messages[2].".
  explicit FieldReader(const boost::json::object& object, std::string path = "") : object_(object), path_(std::move(path)) {}

  [[nodiscard]] bool ok() const { return !error_.has_value(); }
  // Requires: !ok().
  [[nodiscard]] Error take_error();
  // The field of the error, with its path ("messages[2].role"); empty if there is none.
  [[nodiscard]] const std::string& failed_field() const { return failed_field_; }
  // The prefix of this object's fields.
  [[nodiscard]] const std::string& path() const { return path_; }
  // Records `error`, unless there is already one.
  void fail_with(Error error);
  // Records the error of an object inside this one, as fail_with() does. Requires: !inner.ok().
  void fail_as(FieldReader& inner);
  // Records an error as fail_with() does, with the message: field "NAME" WHAT_IS_WRONG.
  void fail_field(std::string_view name, std::string_view what_is_wrong, ErrorCode code = ErrorCode::proto_field);

  // Returns nullptr for null and absent fields, and for every field after an error.
  [[nodiscard]] const boost::json::value* find(std::string_view name) const;
  // Whether the field is there and null, which find() does not tell from an absent one.
  [[nodiscard]] bool is_null(std::string_view name) const;

  // UTF-8 without NUL characters.
  std::optional<std::string> text(std::string_view name, TextBytes bytes = {});
  // A missing field is an error; otherwise as text().
  std::string required_text(std::string_view name, TextBytes bytes = {});
  std::optional<bool> boolean(std::string_view name);
  // An integer; 1e3 and 10.0 are accepted.
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t low, std::int64_t high);
  std::optional<std::uint64_t> unsigned_integer(std::string_view name);
  std::optional<double> number(std::string_view name, NumberRange range);
  const boost::json::array* array(std::string_view name);
  const boost::json::object* object(std::string_view name);

  // Checks a string inside the field `name`; as text().
  std::optional<std::string> checked_text(std::string_view name, const boost::json::value& value, TextBytes bytes);
  std::optional<double> checked_number(std::string_view name, const boost::json::value& value, NumberRange range);

 private:
  void fail_type(std::string_view name, std::string_view wanted, const boost::json::value& got);

  const boost::json::object& object_;
  const std::string path_;
  std::optional<Error> error_;
  std::string failed_field_;
};

}  // namespace uma::json
