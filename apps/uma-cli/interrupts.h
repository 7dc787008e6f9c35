// Signals as values. Handlers only count and write a byte to a pipe. All blocking of this program happens in wait(), which that
// byte ends. One object per process, used by one thread.
//   SIGINT             a Ctrl-C, counted until take()
//   SIGTERM, SIGHUP    must_leave(): clean up and exit
//   SIGWINCH, SIGCONT  take_redraw(): the terminal has changed
#pragma once

#include <poll.h>
#include <span>

namespace uma::cli {

enum class Wake { ready, signal, timeout };

class Interrupts {
 public:
  Interrupts();  // Installs the handlers and ignores SIGPIPE, so that a closed pipe gives EPIPE.
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Blocks until one of `fds` (at most 7) has an event, a signal arrives or `timeout_ms` has passed (-1: no timeout). Returns
  // `signal` at once while a Ctrl-C is pending or must_leave() is true.
  [[nodiscard]] Wake wait(std::span<pollfd> fds, int timeout_ms = -1);

  [[nodiscard]] bool pending() const;     // True if a Ctrl-C has not been taken, or must_leave() is true.
  [[nodiscard]] int take();               // Number of Ctrl-Cs since the last call.
  [[nodiscard]] bool must_leave() const;  // Stays true until dismiss().
  [[nodiscard]] bool take_redraw();
  void dismiss();  // Forgets all signals, so that cleaning up can block in spite of them.

 private:
  int wake_fd_ = -1;
};

}  // namespace uma::cli
