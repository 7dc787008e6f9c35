// A clock that advances only on request. Not thread-safe.
#pragma once

#include "base/clock.h"

namespace uma::testing {

class SimClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return now_; }
  [[nodiscard]] std::int64_t unix_s() const override {
    return 1'700'000'000 + std::chrono::duration_cast<std::chrono::seconds>(now_.time_since_epoch()).count();
  }
  void advance(Duration by) { now_ += by; }

 private:
  TimePoint now_{std::chrono::hours(1)};
};

}  // namespace uma::testing
