// A value that one thread replaces and others read, as of its last replacement. Thread-safe. Neither side waits for longer than
// the copy of a pointer: the value is made before and freed after the lock is held.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace uma {

template <class T>
class Published {
 public:
  void publish(std::shared_ptr<const T> value) {
    const MutexLock lock(mutex_);
    latest_.swap(value);
  }
  // Null: nothing was published yet.
  [[nodiscard]] std::shared_ptr<const T> latest() const {
    const MutexLock lock(mutex_);
    return latest_;
  }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<const T> latest_ GUARDED_BY(mutex_);  // Shared with readers, which may hold it while it is replaced.
};

// Whether somebody wants to read, so that nothing is made for nobody. Thread-safe.
class Demand {
 public:
  void want_until(TimePoint time) { until_us_.store(to_us(time), std::memory_order_relaxed); }
  [[nodiscard]] bool is_wanted(TimePoint now) const { return to_us(now) < until_us_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> until_us_{std::numeric_limits<std::int64_t>::min()};
};

}  // namespace uma
