// Decides how many threads compute while other processes want the same cores. A thread whose core is taken delays all others at
// every step of a graph, so one thread less is faster (docs/MEASUREMENTS.md: 55 against 30 tokens/s). Pure; owned by one lane.
#pragma once

#include <cstdint>

namespace uma::sched {

class ThreadControl {
 public:
  static constexpr double kSampleMs = 200;  // Time between two observations.

  explicit ThreadControl(std::int32_t threads_max) : threads_max_(threads_max), threads_(threads_max) {}

  // Other processes kept `busy_cores` cores busy since the last observation. Releases a thread for each of these cores after
  // two such observations in a row, and takes threads back after five in a row without them.
  void observe(double busy_cores);
  // 1 to threads_max.
  [[nodiscard]] std::int32_t threads() const { return threads_; }

 private:
  static constexpr int kToDrop = 2;
  static constexpr int kToReturn = 5;

  const std::int32_t threads_max_;
  std::int32_t threads_;
  std::int32_t wanted_last_ = 0;
  int times_ = 0;  // How often the same number was wanted in a row.
};

}  // namespace uma::sched
