// Parses the body of an HTTP request: one JSON object. What some programs write that is no text is mended, because it would
// stay in a conversation for good: a byte order mark is left out, and NUL characters and halves of surrogate pairs, as in the
// cut output of a tool, become U+FFFD.
#pragma once

#include <array>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

#include <boost/json/monotonic_resource.hpp>
#include <boost/json/object.hpp>
#include <boost/json/storage_ptr.hpp>

#include "core/error.h"
#include "json/field_reader.h"

namespace uma::wire {

// Why a body was rejected.
struct RejectedBody {
  Error error;
  std::string field;  // With its path ("messages[2].role"); empty: no single one.
};

// The body's object, allocated in `memory`.
[[nodiscard]] std::expected<boost::json::object, RejectedBody> parse_body(std::string_view body,
                                                                          boost::json::storage_ptr memory);

// Returns read(fields) of the object, or the first error of its fields.
template <class T, class ReadT>
[[nodiscard]] std::expected<T, RejectedBody> read_object(const boost::json::object& object, ReadT&& read) {
  json::FieldReader fields(object);
  T value = read(fields);
  if (fields.ok()) return value;
  std::string field = fields.failed_field();
  return std::unexpected(RejectedBody{fields.take_error(), std::move(field)});
}

// Parses the body and reads its fields.
template <class T, class ReadT>
[[nodiscard]] std::expected<T, RejectedBody> decode_body(std::string_view body, ReadT&& read) {
  std::array<unsigned char, 4096> buffer;  // Large enough for most requests.
  boost::json::monotonic_resource memory(buffer.data(), buffer.size());
  const auto object = parse_body(body, &memory);
  if (!object) return std::unexpected(object.error());
  return read_object<T>(*object, read);
}

}  // namespace uma::wire
