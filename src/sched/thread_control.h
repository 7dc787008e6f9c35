// How many threads compute while other processes want the same cores. A thread whose core is taken holds up all others at every
// step of a graph, so one less is faster (docs/MEASUREMENTS.md: 55 against 30 tokens/s). Pure; owned by one lane.
#pragma once

#include <cstdint>

namespace uma::sched {

class ThreadControl {
 public:
  static constexpr double kSampleMs = 200;  // between two observations

  explicit ThreadControl(std::int32_t threads_max) : threads_max_(threads_max), threads_(threads_max) {}

  // Others kept `busy_cores` cores busy since the last observation. Gives a thread up for each of them once two observations in
  // a row say so, and takes threads back once five in a row do not.
  void observe(double busy_cores);
  // 1 to threads_max.
  [[nodiscard]] std::int32_t threads() const { return threads_; }

 private:
  static constexpr int kToDrop = 2;
  static constexpr int kToReturn = 5;

  const std::int32_t threads_max_;
  std::int32_t threads_;
  std::int32_t wanted_last_ = 0;
  int times_ = 0;  // that the same has been wanted in a row
};

}  // namespace uma::sched
