// An error from outside of the program, as a value. The code decides about HTTP status, exit code and retry; the message tells
// a person what to do.
#pragma once

#include <cstdint>
#include <expected>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>

namespace uma {

enum class ErrorCode : std::uint8_t {
  proto_json,          // E_PROTO_001  not JSON, or not an object.
  proto_frame,         // E_PROTO_002  frame too large.
  proto_field,         // E_PROTO_003  a field is missing, has the wrong type or an impossible value.
  proto_type,          // E_PROTO_004  unknown request type.
  proto_id_in_flight,  // E_PROTO_005  the id of a request that still runs.
  limit_prompt,        // E_LIMIT_001  the prompt alone is too large.
  limit_sessions,      // E_LIMIT_002  too many sessions.
  limit_wait,          // E_LIMIT_003  waited past its deadline, or overloaded.
  limit_context,       // E_LIMIT_004  session and delta exceed the context.
  limit_quota,         // E_LIMIT_005
  model_unknown,       // E_MODEL_001  unknown or not loaded.
  model_load,          // E_MODEL_002
  model_capability,    // E_MODEL_003
  session_unknown,     // E_SESSION_001
  session_busy,        // E_SESSION_002
  session_name_taken,  // E_PROTO_003  another session has the name.
  runtime_decode,      // E_RUNTIME_001
  io_failed,           // E_IO_001
  outcome_unknown,     // E_IO_002  a change may have happened: sent again, it could happen twice.
  auth,                // E_AUTH_001
};

// The code's name in the protocols, such as "E_PROTO_001".
[[nodiscard]] std::string_view code_name(ErrorCode code);

struct Error {
  ErrorCode code;
  std::string message;
  std::string field{};  // The request's field that caused the error, with its path; empty: none, or the message names it.
};

// The value of an operation that only succeeds or fails.
struct Unit {};

template <class T>
using Expected = std::expected<T, Error>;

inline std::unexpected<Error> fail(ErrorCode code, std::string message) {
  return std::unexpected(Error{code, std::move(message)});
}

// The error of a request whose work has thrown. Logs the exception being handled (base/thrown.h).
[[nodiscard]] Error thrown_error(const std::source_location& place = std::source_location::current());

// Runs a part of a request's work, which returns an Expected, and converts an exception to an error.
template <class Work>
auto contain(Work&& work, const std::source_location& place = std::source_location::current()) -> decltype(work()) {
  try {
    return std::forward<Work>(work)();
  } catch (...) {
    return std::unexpected(thrown_error(place));
  }
}

}  // namespace uma
