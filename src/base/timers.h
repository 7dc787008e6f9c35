// Calls functions when their time has come. Owned by one thread, which calls run_due() as soon as next() has come.
#pragma once

#include <cstdint>
#include <map>
#include <source_location>
#include <utility>

#include "base/clock.h"
#include "base/move_only_function.h"

namespace uma {

class Timers {
 public:
  // The clock outlives this object.
  explicit Timers(const Clock& clock) : clock_(clock) {}
  Timers(const Timers&) = delete;

  // When the next call is due; kNever: none is.
  [[nodiscard]] TimePoint next() const { return calls_.empty() ? kNever : calls_.begin()->first.first; }
  // Makes the calls that are due, in the order of their times. A call that is set meanwhile is left to the next run, so that a
  // run ends. Exceptions are logged and counted.
  void run_due();

 private:
  friend class Timer;
  using Key = std::pair<TimePoint, std::uint64_t>;  // The number makes it unique, and is never 0.
  struct Call {
    MoveOnlyFunction<void()> call;
    std::source_location place;
  };

  const Clock& clock_;
  std::map<Key, Call> calls_;
  std::uint64_t last_number_ = 0;
};

// One call, which is not made any more when this object is destroyed. The timers outlive it.
class Timer {
 public:
  explicit Timer(Timers& timers) : timers_(timers) {}
  Timer(const Timer&) = delete;
  ~Timer() { cancel(); }

  // Makes the call at that time instead of the one that was set before; never if the time is kNever.
  void set(TimePoint at, MoveOnlyFunction<void()> call, const std::source_location& place = std::source_location::current());
  // Does so unless an earlier call is set.
  void set_by(TimePoint at, MoveOnlyFunction<void()> call, const std::source_location& place = std::source_location::current());
  void cancel() { timers_.calls_.erase(key_); }

 private:
  Timers& timers_;
  Timers::Key key_{};
};

}  // namespace uma
