// The machine's clock, which also advances on request. Thread-safe.
#pragma once

#include <atomic>

#include "base/clock.h"

namespace uma::testing {

class RunningClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return SteadyClock().now() + Duration(ahead_.load()); }
  void advance(Duration by) { ahead_ += by.count(); }

 private:
  std::atomic<Duration::rep> ahead_{0};
};

}  // namespace uma::testing
