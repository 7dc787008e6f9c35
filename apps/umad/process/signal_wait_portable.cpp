// sigwait(), which every system has, does not tell who sent a signal. Therefore the signals have a handler that notes it. They
// are unblocked only while take() waits, so that the handler runs in no other thread and interrupts nothing else.
#include "umad/process/signal_wait.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <sys/select.h>

#include "base/check.h"

namespace uma::umad {
namespace {

// Signals that the handler has noted. Several may arrive during one wait, but each at most once.
struct NotedSignals {
  std::array<TakenSignal, 32> signals{};
  volatile std::sig_atomic_t count = 0;
};
NotedSignals noted;

void note_signal(int number, siginfo_t* signal, void* /*context*/) {
  const auto at = static_cast<std::size_t>(noted.count);
  if (at == noted.signals.size()) return;
  noted.signals[at] = {.number = number, .sender = signal->si_code == SI_USER ? signal->si_pid : 0};
  noted.count = static_cast<std::sig_atomic_t>(at + 1);
}

timespec to_timespec(Duration duration) {
  const Duration left = std::max(duration, Duration::zero());
  const auto s = std::chrono::duration_cast<std::chrono::seconds>(left);
  return {.tv_sec = s.count(), .tv_nsec = (left - s).count()};
}

std::optional<TakenSignal> first_noted() {
  const auto count = static_cast<std::size_t>(noted.count);
  if (count == 0) return std::nullopt;
  const TakenSignal first = noted.signals.front();
  std::copy(noted.signals.begin() + 1, noted.signals.begin() + static_cast<std::ptrdiff_t>(count), noted.signals.begin());
  noted.count = static_cast<std::sig_atomic_t>(count - 1);
  return first;
}

}  // namespace

SignalWait::SignalWait(const sigset_t& signals) : signals_(signals) {
  struct sigaction action{};
  action.sa_sigaction = note_signal;
  action.sa_flags = SA_SIGINFO;
  action.sa_mask = signals;
  for (int number = 1; number < NSIG; ++number) {
    if (::sigismember(&signals, number) == 1) UMA_CHECK(::sigaction(number, &action, nullptr) == 0);
  }
}

std::optional<TakenSignal> SignalWait::take(std::optional<Duration> limit) const {
  if (const auto signal = first_noted()) return signal;
  sigset_t unblocked;
  UMA_CHECK(::pthread_sigmask(SIG_SETMASK, nullptr, &unblocked) == 0);
  for (int number = 1; number < NSIG; ++number) {
    if (::sigismember(&signals_, number) == 1) ::sigdelset(&unblocked, number);
  }
  const timespec time = limit ? to_timespec(*limit) : timespec{};
  (void)::pselect(0, nullptr, nullptr, nullptr, limit ? &time : nullptr, &unblocked);
  return first_noted();
}

}  // namespace uma::umad
