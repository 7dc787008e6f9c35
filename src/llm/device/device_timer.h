// How long devices compute. Internal to llm, because it includes the library's headers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "llm/device/lost_devices.h"

namespace uma::llm {

// The time of one device in which at least one call uses it. Any thread. A time before the last one counts as that one.
class BusyTime {
 public:
  explicit BusyTime(TimePoint now) : last_(now), newest_{.at = now}, oldest_{.at = now} {}

  void begin(TimePoint now);
  void end(TimePoint now);

  struct Reading {
    double busy_s = 0;
    double ratio = 0;  // The share of the last kWindow, or of up to as much more as there were neither calls nor readings.
  };
  [[nodiscard]] Reading read(TimePoint now);

  static constexpr Duration kWindow = std::chrono::seconds(5);

 private:
  struct Mark {
    TimePoint at{};
    Duration busy{0};
  };
  // Counts up to `now`.
  void advance(TimePoint now) REQUIRES_LOCK(mutex_);

  Mutex mutex_;
  std::int32_t running_ GUARDED_BY(mutex_) = 0;  // Calls.
  Duration busy_ GUARDED_BY(mutex_){0};
  TimePoint last_ GUARDED_BY(mutex_);
  Mark newest_ GUARDED_BY(mutex_);  // At least kWindow behind the other.
  Mark oldest_ GUARDED_BY(mutex_);
};

// Tells the process's BusyTimes when these devices compute. The library does not say how much of a call a device needs: all of
// it counts, also what other devices and the CPU do in between.
class DeviceTimer {
 public:
  explicit DeviceTimer(DeviceList devices);

  class Call {
   public:
    explicit Call(const std::vector<std::shared_ptr<BusyTime>>& times);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    const std::vector<std::shared_ptr<BusyTime>>& times_;
  };
  // The devices compute until the result is destroyed.
  [[nodiscard]] Call begin() const { return Call(times_); }

 private:
  std::vector<std::shared_ptr<BusyTime>> times_;  // Shared by all timers of a device, and with the process's list.
};

}  // namespace uma::llm
