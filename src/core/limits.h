// The bounds of one daemon (the `limits` section of the configuration). Sizes in bytes, times in ms.
#pragma once

#include <cstddef>
#include <cstdint>

namespace uma {

// Limit of an exported conversation: a million tokens and their text.
inline constexpr std::size_t kConversationBytesMax = 16ul << 20;

struct Limits {
  std::size_t max_sessions = 100'000;
  std::size_t tenant_sessions_max = 0;  // Sessions of one tenant; 0: no quota.
  std::size_t tenant_tokens_max = 0;    // Tokens of all sessions of one tenant; 0: no quota.
  std::size_t tenant_bytes_max = 0;     // Bytes of their tokens and texts in the catalog; 0: no quota.
  std::size_t max_prompt_bytes = 16ul << 20;
  std::int32_t max_tokens = 0;  // Limit of one reply; larger requests are cut to it; 0: none.
  std::size_t max_frame_bytes = 16ul << 20;
  std::size_t tx_bytes_max = 262'144;  // Unwritten bytes of one connection; a stream beyond this ends with slow_consumer.
  std::size_t queue_max = 0;           // Waiting requests; 0: no limit by number.
  std::size_t queue_bytes_max = 268'435'456;
  std::size_t transfer_bytes_max = 1ul << 30;  // Memory of imported session files, and as much again of exported KV.
  std::int64_t deadline_ms = 0;                // Waiting time; 0: no limit.
};

}  // namespace uma
