#include "sched/thread_control.h"

#include <algorithm>
#include <cmath>

namespace uma::sched {

void ThreadControl::observe(double busy_cores) {
  // With half a core taken, a thread waits half of its time. Before a thread returns, its core must be nearly free.
  const bool is_down = threads_ < threads_max_;
  const double share = is_down ? 0.75 : 0.5;
  const auto wanted = std::clamp(threads_max_ - static_cast<std::int32_t>(std::floor(busy_cores + share)), 1, threads_max_);
  if (wanted != wanted_last_) times_ = 0;
  wanted_last_ = wanted;
  ++times_;
  if (times_ >= (wanted < threads_ ? kToDrop : kToReturn)) threads_ = wanted;
}

}  // namespace uma::sched
