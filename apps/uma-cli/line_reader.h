// Lines of the chat: typed at a terminal with editing and history, or from a pipe or file.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "uma-cli/interrupts.h"

namespace uma::cli {

enum class LineEnd {
  line,
  cleared,      // Ctrl-C while something was typed: the line is gone
  interrupted,  // Ctrl-C on an empty line
  end_of_input,
  leave,  // SIGTERM or SIGHUP
};

struct Line {
  LineEnd end = LineEnd::line;
  std::string text;  // without its newline
};

class LineReader {
 public:
  virtual ~LineReader() = default;
  // Blocks. `prompt` is shown where a person types.
  virtual Line read(const std::string& prompt) = 0;
  [[nodiscard]] virtual bool is_terminal() const = 0;
};

// Lines of `fd`; no prompts. A line longer than any request may be ends the input.
std::unique_ptr<LineReader> read_lines_from(int fd, Interrupts& interrupts);

// Line editing on standard input, shown on `output` (stdout or stderr), with the history of `history_path` (empty: in memory
// only). One at a time in a process: libedit owns the terminal's modes while a line is read.
std::unique_ptr<LineReader> edit_lines(std::FILE* output, std::string history_path, Interrupts& interrupts);

}  // namespace uma::cli
