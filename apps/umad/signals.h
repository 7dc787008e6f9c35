// Signals as values: a thread of its own takes them with sigwait, so that no code of ours runs inside a signal handler.
#pragma once

#include <csignal>
#include <functional>
#include <sys/types.h>
#include <thread>

namespace uma::umad {

// Blocks TERM, INT, HUP and USR1 (and USR2, which SignalThread ends itself with) in the calling thread and in all threads that
// it makes later, and ignores PIPE and XFSZ. Called first in main, before any thread exists.
void block_signals();

// Hands every TERM, INT, HUP and USR1 of the process to `handle`, one at a time, on its own thread, with the process that sent
// it (0: the kernel, or one that cannot be named here). The destructor waits for a running `handle` and ends the thread.
class SignalThread {
 public:
  explicit SignalThread(std::function<void(int signal, pid_t sender)> handle);
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  std::jthread thread_;
};

}  // namespace uma::umad
