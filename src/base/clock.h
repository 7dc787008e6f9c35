// Time as the rooms see it: a value that somebody hands in. SteadyClock is the machine's monotonic clock; the simulator and the
// unit tests use testing/sim_clock.h. Monotonic, so a change of the wall clock moves no deadline.
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

// Since the clock's own beginning.
constexpr std::int64_t to_us(TimePoint time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

// Seconds since the Unix epoch, for what is stored or shown; never used to measure.
std::int64_t unix_time_s();

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint now() const = 0;
  // The wall clock; a change of it may move it either way.
  [[nodiscard]] virtual std::int64_t unix_s() const { return unix_time_s(); }
};

// Thread-safe.
class SteadyClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace uma
