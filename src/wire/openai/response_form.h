// The fields of a request that a response of /v1/responses repeats (ResponseRequest::request).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/request.h"
#include "json/field_reader.h"
#include "wire/openai/response_tools.h"

namespace uma::wire {

// How much of the request a response repeats: events before its end leave out the long fields.
enum class Repeated : std::uint8_t { all, brief };

// The facts that the repeated fields are made from, beside the request's JSON. Borrowed.
struct RepeatedFacts {
  const GenerateRequest& generate;
  const ResponseRequest& response;
  const ResponseTools& tools;
  bool is_background = false;
  std::string_view previous{};       // The response that is continued, with its prefix; empty: none.
  std::string_view metadata = "{}";  // A JSON object.
};

// Writes the beginning of a JSON object, with OpenAI's defaults for absent fields. `fields`: the request; what it lacks or has
// wrongly becomes its failure, and the result is empty then.
[[nodiscard]] std::string repeated_fields(json::FieldReader& fields, const RepeatedFacts& facts, Repeated how);

}  // namespace uma::wire
