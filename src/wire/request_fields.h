// Which fields of a request count. One table says for each route and field whether the field is served, is ignored because it
// cannot change the answer, is left out with a warning, or is refused. The decoders ask it before they read, so that nothing
// that would change an answer is dropped silently; tools/fields_tables.py writes it into the pages of docs/protocol.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json/monotonic_resource.hpp>
#include <boost/json/object.hpp>

#include "json/field_reader.h"
#include "wire/json_body.h"

namespace uma::wire {

// The requests that have a table. One bare name a line: tools/fields_tables.py reads them.
enum class RequestRoute : std::uint8_t {
  chat,
  completions,
  responses,
  messages,
  ollama_chat,
  ollama_generate,
  ollama_embed,
  ollama_embeddings,
  embeddings,
  rerank,
  images,
  infill,
  completion
};
inline constexpr std::size_t kRequestRoutes = 13;  // completion, which is llama-server's /completion, is the last.

enum class FieldClass : std::uint8_t {
  served,   // Read by the decoder, which also checks it.
  ignored,  // Cannot change the answer.
  warned,   // "Left out": the answer has a warning.
  refused   // The request fails, unless the value is empty or harmless.
};

struct RequestField {
  std::uint32_t routes = 0;  // Bit i: the route with the value i.
  std::string_view paths;    // Fields with their places, separated by blanks: "stream_options.include_usage tools[].type".
  FieldClass kind = FieldClass::served;
  std::string_view note;        // Why, or under which condition.
  std::string_view harmless{};  // Values that ask for nothing, separated by blanks.
};

[[nodiscard]] std::span<const RequestField> request_fields();

// Refuses the fields of `body` that the table refuses, as failures of `fields`. Returns a sentence for each field that is left
// out, and one for all fields that nobody knows.
[[nodiscard]] std::vector<std::string> check_request_fields(json::FieldReader& fields, const boost::json::object& body,
                                                            RequestRoute route);
// Refuses one field of `fields`, as check_request_fields() does. Requires: the table refuses it.
void refuse_field(json::FieldReader& fields, RequestRoute route, std::string_view path);

// Parses the body, asks the table and reads the fields. The sentences of the table precede those of read() in T::warnings.
template <class T, class ReadT>
[[nodiscard]] std::expected<T, RejectedBody> decode_request(RequestRoute route, std::string_view body, ReadT&& read) {
  std::array<unsigned char, 4096> buffer;  // Large enough for most requests.
  boost::json::monotonic_resource memory(buffer.data(), buffer.size());
  const auto object = parse_body(body, &memory);
  if (!object) return std::unexpected(object.error());
  return read_object<T>(*object, [&](json::FieldReader& fields) {
    std::vector<std::string> warnings = check_request_fields(fields, *object, route);
    T value = read(fields);
    value.warnings.insert(value.warnings.begin(), std::make_move_iterator(warnings.begin()),
                          std::make_move_iterator(warnings.end()));
    return value;
  });
}

}  // namespace uma::wire
