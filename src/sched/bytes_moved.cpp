#include "sched/bytes_moved.h"

#include <algorithm>
#include <cmath>

namespace uma::sched {

double weights_read(const WeightBytes& weights, std::int32_t rows) {
  const double share_of_row = static_cast<double>(weights.experts_used) / std::max(1, weights.experts_count);
  const double share = 1 - std::pow(1 - std::clamp(share_of_row, 0.0, 1.0), rows);
  return static_cast<double>(weights.always) + static_cast<double>(weights.experts) * share;
}

void BandwidthBudget::charge(double bytes, double began_ms) {
  if (bytes_per_ms_ <= 0) return;
  const MutexLock lock(mutex_);
  // A slow call earns no credit for later calls.
  free_at_ms_ = std::max(free_at_ms_, began_ms) + bytes / bytes_per_ms_;
}

double BandwidthBudget::free_at_ms() const {
  const MutexLock lock(mutex_);
  return free_at_ms_;
}

}  // namespace uma::sched
