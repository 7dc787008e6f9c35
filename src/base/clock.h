// Time as a dependency. SteadyClock is the machine's monotonic clock; the simulator and the unit tests use testing/sim_clock.h.
// Changes of the wall clock move no deadline.
#pragma once

#include <chrono>
#include <cstdint>

namespace uma {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

// Later than every time a clock returns: "no deadline".
inline constexpr TimePoint kNever = TimePoint::max();

constexpr double to_ms(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}
constexpr Duration from_ms(double ms) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(ms));
}

// Microseconds since the clock's beginning.
constexpr std::int64_t to_us(TimePoint time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

// Seconds since the Unix epoch, for storage and display; never for measuring.
std::int64_t unix_time_s();

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint now() const = 0;
  // The wall clock, which may jump in both directions.
  [[nodiscard]] virtual std::int64_t unix_s() const { return unix_time_s(); }
};

// Thread-safe.
class SteadyClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

// The clock of those who are given no other.
[[nodiscard]] inline const Clock& machine_clock() {
  static const SteadyClock clock;
  return clock;
}

}  // namespace uma
