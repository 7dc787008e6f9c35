// Signals as values. Handlers only count and write a byte to a pipe; everything that blocks in this program blocks in wait(),
// which that byte ends. One object per process, used by one thread.
//   SIGINT             a Ctrl-C, counted until take()
//   SIGTERM, SIGHUP    must_leave(): end the session's temporary things and go
//   SIGWINCH, SIGCONT  take_redraw(): the terminal is not as it was
#pragma once

#include <poll.h>
#include <span>

namespace uma::cli {

enum class Wake { ready, signal, timeout };

class Interrupts {
 public:
  Interrupts();  // installs the handlers and ignores SIGPIPE (a closed pipe is then EPIPE)
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Blocks until one of `fds` (at most 7) has an event, a signal arrives or `timeout_ms` has passed; -1: no timeout.
  // Returns `signal` at once while a Ctrl-C is not taken or must_leave() is true.
  [[nodiscard]] Wake wait(std::span<pollfd> fds, int timeout_ms = -1);

  [[nodiscard]] bool pending() const;     // a Ctrl-C is not taken, or must_leave()
  [[nodiscard]] int take();               // Ctrl-Cs since the last call
  [[nodiscard]] bool must_leave() const;  // stays true until dismiss()
  [[nodiscard]] bool take_redraw();
  void dismiss();  // forgets all of them: what follows shall run in spite of the signal that led to it

 private:
  int wake_fd_ = -1;
};

}  // namespace uma::cli
