// Decodes the JSON of one frame to a typed request. docs/protocol/socket.md lists every type, field and range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <string_view>

#include "wire/json_body.h"
#include "wire/own/request.h"

namespace uma::wire {

inline constexpr std::size_t kIdBytesMax = 128;       // The client's request id.
inline constexpr std::size_t kSessionBytesMax = 128;  // A session's id or name.
inline constexpr std::size_t kModelBytesMax = 1024;   // A model's name.
inline constexpr std::size_t kStopStringsMax = 64;
inline constexpr std::size_t kStopBytesMax = 1024;   // One stop string.
inline constexpr std::int64_t kTopLogprobsMax = 20;  // Alternatives returned with each token.
inline constexpr std::size_t kLogitBiasMax = 1024;   // Tokens of a logit_bias, which cost time for each token of the reply.
inline constexpr std::size_t kLogitBiasTextBytesMax = 256;
inline constexpr std::size_t kGrammarBytesMax = 262'144;
inline constexpr double kTemperatureMax = 100;               // llama-server's own paths also take negative ones.
inline constexpr std::int64_t kTimeMsMax = 31'536'000'000;   // Limit of deadline_ms and timeout_ms: a year.
inline constexpr std::int64_t kTargetMsMax = 3'600'000;      // Limit of target_ttft_ms and target_tbt_ms: an hour.
inline constexpr std::int64_t kTtlSecondsMax = 315'360'000;  // Ten years.

// `body` is a frame without its length. Pure; long ones are decoded on uma-work.
[[nodiscard]] std::expected<Request, RejectedRequest> decode_request(std::string_view body);

// Decodes a request of HTTP. The path determines the type, which must be known, and the session (empty: none); the body, which
// may be empty, has the other fields. Pure.
[[nodiscard]] std::expected<RequestBody, RejectedBody> decode_session_request(std::string_view type, std::string_view session,
                                                                              std::string_view body);

}  // namespace uma::wire
