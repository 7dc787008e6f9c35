// Which stored states are worth their place. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace uma::kv {

enum class EvictionOrder : std::uint8_t { value, lru };

// What is known of a state that takes room somewhere.
struct StateView {
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
  std::size_t tokens_count = 0;
  std::uint32_t uses = 0;      // it was resumed
  double idle_s = 0;           // since it was last used
  bool is_foreign = false;     // its model is used with other settings now
  bool is_over_share = false;  // of a tenant that has more of the place than its equal share
};

// What keeping a state is worth: chance of return x time to compute it again / bytes. The chance falls with the time it has not
// been used and rises with every use; the time grows with the square of a long text's length.
[[nodiscard]] double value_of(const StateView& state);

// The one to go first; null where there are none. Foreign ones go before all others, the longest unused of them first; then
// those of tenants above their share.
[[nodiscard]] const StateView* least_valuable(std::span<const StateView> states, EvictionOrder order);

}  // namespace uma::kv
