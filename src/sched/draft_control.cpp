#include "sched/draft_control.h"

#include <algorithm>

namespace uma::sched {

std::int32_t DraftControl::tokens_worthwhile(double token_ms, double row_ms) const {
  if (row_ms <= 0) return 2;  // A careful first try, which measures the cost.
  std::int32_t count = 0;
  for (double chance = right_; count < kDraftTokensMax && chance * token_ms > row_ms; chance *= right_) ++count;
  return count;
}

void DraftControl::observe(std::int32_t drafted, std::int32_t accepted) {
  // Each draft token up to the first wrong one is informative; later ones are not.
  const auto learn = [&](double right) {
    weight_ = std::min(weight_ + 1, prior_.weight_max);
    right_ += (right - right_) / weight_;
  };
  for (std::int32_t i = 0; i < accepted; ++i) learn(1);
  if (accepted < drafted) learn(0);
  right_ = std::clamp(right_, 0.01, 0.98);
}

}  // namespace uma::sched
