// Takes signals as values, one at a time.
#pragma once

#include <csignal>
#include <optional>
#include <sys/types.h>

#include "base/clock.h"

namespace uma::umad {

struct TakenSignal {
  int number = 0;
  pid_t sender = 0;  // The process that called kill(); 0: the kernel, or a process outside this namespace.
};

// Requires: the signals are blocked in all threads, and a process has only one object at a time that waits for them.
class SignalWait {
 public:
  explicit SignalWait(const sigset_t& signals);
  // Blocks until one of the signals arrives, for at most `limit`. Nullopt if the time has passed; seldom before.
  [[nodiscard]] std::optional<TakenSignal> take(std::optional<Duration> limit = {}) const;

 private:
  const sigset_t signals_;
};

}  // namespace uma::umad
