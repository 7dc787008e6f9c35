// The bounds of one daemon (the `limits` section of the configuration). Sizes in bytes, times in ms.
#pragma once

#include <cstddef>
#include <cstdint>

namespace uma {

inline constexpr std::size_t kConversationBytesMax = 16ul << 20;  // in an exported session: a million tokens and their text

struct Limits {
  std::size_t max_sessions = 100'000;
  std::size_t tenant_sessions_max = 0;  // of one tenant; 0: no quota
  std::size_t tenant_tokens_max = 0;    // that the sessions of one tenant keep together; 0: no quota
  std::size_t max_prompt_bytes = 1'048'576;
  std::int32_t max_tokens = 2048;  // of one reply; requests above are clamped
  std::size_t max_frame_bytes = 1'048'576;
  std::size_t tx_bytes_max =
      262'144;                // not yet written bytes of one connection; a stream that goes past ends with slow_consumer
  std::size_t queue_max = 0;  // waiting requests; 0: not bounded by count
  std::size_t queue_bytes_max = 268'435'456;
  std::size_t transfer_bytes_max = 1ul << 30;  // in memory of session files that come, and as many of KV that goes
  std::int64_t deadline_ms = 30'000;           // of waiting; 0: none
};

}  // namespace uma
