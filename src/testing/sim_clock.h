// A clock that moves only when told to. Not thread-safe.
#pragma once

#include "base/clock.h"

namespace uma::testing {

class SimClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return now_; }
  void advance(Duration by) { now_ += by; }

 private:
  TimePoint now_{std::chrono::hours(1)};
};

}  // namespace uma::testing
