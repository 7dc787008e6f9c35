// Rates stored states for eviction. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace uma::kv {

enum class EvictionOrder : std::uint8_t { value, lru };

// Typical times until the next request of a conversation. Of coding agents they were measured: behind a call half of the
// requests come within 8 s (537 of recorded main agents), and what an agent that was begun for one task has computed is at most
// the beginning of the next one.
inline constexpr double kPersonPauseS = 60;
inline constexpr double kToolPauseS = 8;
inline constexpr double kEndedPauseS = 300;

// The properties of a stored state that its value depends on.
struct StateView {
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
  std::size_t tokens_count = 0;
  std::uint32_t uses = 0;  // Number of times it was resumed.
  double idle_s = 0;       // Time since its last use.
  double pause_s = kPersonPauseS;
  bool is_foreign = false;     // Its model is used with other settings now.
  bool is_over_share = false;  // Its tenant uses more than an equal share of the tier.
};

// The value of keeping a state: probability of reuse x time to compute it again / bytes. The probability falls with idle time
// and rises with every use; the time grows with the square of a long text's length.
[[nodiscard]] double value_of(const StateView& state);

// The state to evict first; null if there is none. States for other settings go first, the longest unused before the others;
// then states of tenants above their share.
[[nodiscard]] const StateView* least_valuable(std::span<const StateView> states, EvictionOrder order);

// Whether `waiting` requests should wait for `store_ms` while a state that belongs to no session is stored, so that the tokens
// need not be computed again in `compute_ms`. One in ten of such states is expected to be used again. Unknown times are 0.
[[nodiscard]] constexpr bool is_worth_the_wait(std::size_t waiting, double store_ms, double compute_ms) {
  constexpr double kUsedAgain = 0.1;
  return compute_ms <= 0 || static_cast<double>(waiting) * store_ms <= kUsedAgain * compute_ms;
}

}  // namespace uma::kv
