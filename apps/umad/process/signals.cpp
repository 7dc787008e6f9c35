#include "umad/process/signals.h"

#include <utility>

#include "base/check.h"
#include "base/system/thread_name.h"
#include "umad/process/signal_wait.h"

namespace uma::umad {
namespace {

sigset_t waited_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) ::sigaddset(&set, signal);
  return set;
}

}  // namespace

void block_signals() {
  const sigset_t set = waited_signals();
  UMA_CHECK(::pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  // A lost client, or a file over its size limit, becomes an error of write() instead of ending the daemon.
  UMA_CHECK(std::signal(SIGPIPE, SIG_IGN) != SIG_ERR);
  UMA_CHECK(std::signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
}

SignalThread::SignalThread(std::function<void(int signal, pid_t sender)> handle)
    : thread_([handle = std::move(handle)](const std::stop_token& stop) {
        set_thread_name("uma-signals");
        const SignalWait signals(waited_signals());
        while (!stop.stop_requested()) {
          // USR2 only wakes this thread to see the stop request.
          const auto signal = signals.take();
          if (signal && signal->number != SIGUSR2) handle(signal->number, signal->sender);
        }
      }) {}

SignalThread::~SignalThread() {
  thread_.request_stop();
  ::pthread_kill(thread_.native_handle(), SIGUSR2);
}

}  // namespace uma::umad
