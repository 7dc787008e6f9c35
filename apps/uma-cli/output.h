// Standard output, unbuffered: what was written is on its way. To a terminal goes only what printable.h lets through; a file or
// a pipe gets the exact bytes. Only a write that cannot go on (a pipe that nobody drains) ends at Ctrl-C.
#pragma once

#include <string_view>

#include "uma-cli/interrupts.h"

namespace uma::cli {

enum class WriteEnd {
  done,
  interrupted,  // it would block and a signal is pending; the rest was not written
  closed,       // nobody reads any more (`| head -1`)
  failed,       // the disk is full, or the like: error_number() says
};

class Output {
 public:
  // Borrows both for its life. `fd` stays open.
  Output(int fd, bool is_terminal, Interrupts& interrupts) : fd_(fd), is_terminal_(is_terminal), interrupts_(interrupts) {}

  WriteEnd write(std::string_view text);
  // The same for text of our own: terminal sequences in it work.
  WriteEnd write_verbatim(std::string_view text);

  [[nodiscard]] bool is_closed() const;  // asks the system: true when the reader of a pipe is gone
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
