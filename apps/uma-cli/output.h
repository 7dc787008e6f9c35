// Standard output, unbuffered. Text for a terminal is filtered by printable.h; a file or a pipe gets the exact bytes. A Ctrl-C
// interrupts only a write that cannot proceed, such as one to a full pipe.
#pragma once

#include <cstddef>
#include <string_view>

#include "uma-cli/interrupts.h"

namespace uma::cli {

struct Window {
  std::size_t rows = 24;
  std::size_t columns = 80;
};

enum class WriteEnd {
  done,
  interrupted,  // The write would block and a signal is pending; the rest was not written.
  closed,       // The output has no reader any more, as after `| head -1`.
  failed,       // Any other error, such as a full disk: see error_number().
};

class Output {
 public:
  // Borrows `interrupts` and `fd` for its lifetime; does not close `fd`.
  Output(int fd, bool is_terminal, Interrupts& interrupts) : fd_(fd), is_terminal_(is_terminal), interrupts_(interrupts) {}

  WriteEnd write(std::string_view text);
  // Writes trusted text, whose terminal sequences work.
  WriteEnd write_verbatim(std::string_view text);

  [[nodiscard]] Window window() const;   // The size of the terminal.
  [[nodiscard]] bool is_closed() const;  // True if the reader of a pipe is gone. Makes a system call.
  [[nodiscard]] bool is_terminal() const { return is_terminal_; }
  [[nodiscard]] bool at_line_start() const { return at_line_start_; }
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] int error_number() const { return error_number_; }

 private:
  [[nodiscard]] bool is_writable() const;

  const int fd_;
  const bool is_terminal_;
  Interrupts& interrupts_;
  bool at_line_start_ = true;
  int error_number_ = 0;
};

}  // namespace uma::cli
