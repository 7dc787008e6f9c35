// Receives signals on a separate thread, as values (signal_wait.h).
#pragma once

#include <csignal>
#include <functional>
#include <sys/types.h>
#include <thread>

namespace uma::umad {

// Blocks TERM, INT, HUP and USR1 (and USR2, which ends SignalThread) in the calling thread and in all threads it creates later,
// and ignores PIPE and XFSZ. Called first in main, before any other thread exists.
void block_signals();

// Calls `handle` on its own thread for every TERM, INT, HUP and USR1 of the process, one at a time, with the id of the sending
// process (0: the kernel, or a process outside this namespace). The destructor waits for a running `handle` and ends the
// thread.
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
