#include "umad/process/signal_wait.h"

#include <algorithm>
#include <chrono>
#include <ctime>

namespace uma::umad {
namespace {

timespec to_timespec(Duration duration) {
  const Duration left = std::max(duration, Duration::zero());
  const auto s = std::chrono::duration_cast<std::chrono::seconds>(left);
  return {.tv_sec = s.count(), .tv_nsec = (left - s).count()};
}

}  // namespace

SignalWait::SignalWait(const sigset_t& signals) : signals_(signals) {}

std::optional<TakenSignal> SignalWait::take(std::optional<Duration> limit) const {
  siginfo_t signal{};
  int taken = 0;
  if (limit) {
    const timespec time = to_timespec(*limit);
    taken = ::sigtimedwait(&signals_, &signal, &time);
  } else {
    taken = ::sigwaitinfo(&signals_, &signal);
  }
  if (taken <= 0) return std::nullopt;
  return TakenSignal{.number = signal.si_signo, .sender = signal.si_code == SI_USER ? signal.si_pid : 0};
}

}  // namespace uma::umad
