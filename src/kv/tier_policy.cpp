#include "kv/tier_policy.h"

#include <algorithm>
#include <tuple>

namespace uma::kv {
namespace {

constexpr double kHalfTokens = 8192;  // At about this length, attention costs as much as everything else.

}  // namespace

double value_of(const StateView& state) {
  const double chance = (1.0 + state.uses) / (state.pause_s + state.idle_s);
  const auto tokens = static_cast<double>(state.tokens_count);
  const double cost = tokens * (1 + tokens / kHalfTokens);
  return chance * cost / static_cast<double>(std::max<std::uint64_t>(1, state.bytes));
}

const StateView* least_valuable(std::span<const StateView> states, EvictionOrder order) {
  const auto rank = [order](const StateView& state) {
    const double worth = state.is_foreign || order == EvictionOrder::lru ? -state.idle_s : value_of(state);
    return std::tuple(!state.is_foreign, !state.is_over_share, worth, state.id);
  };
  const auto least = std::ranges::min_element(states, {}, rank);
  return least == states.end() ? nullptr : &*least;
}

}  // namespace uma::kv
