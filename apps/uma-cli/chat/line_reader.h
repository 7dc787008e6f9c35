// Reads the chat's lines from a terminal, with editing and history, or from a pipe or file.
#pragma once

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "uma-cli/interrupts.h"

namespace uma::cli {

enum class LineEnd {
  line,
  discarded,    // Ctrl-C after some text: the line was discarded.
  interrupted,  // Ctrl-C on an empty line.
  end_of_input,
  must_leave,  // SIGTERM or SIGHUP.
};

struct Line {
  LineEnd end = LineEnd::line;
  std::string text;  // The line without its newline.
};

// Returns the lines that begin with `typed`, for the Tab key.
using Completer = std::function<std::vector<std::string>(const std::string& typed)>;

class LineReader {
 public:
  virtual ~LineReader() = default;
  // Readers without a terminal complete nothing.
  virtual void complete_with(const Completer& /*completer*/) {}
  // Blocks. Shows `prompt` only at a terminal.
  virtual Line read(const std::string& prompt) = 0;
  [[nodiscard]] virtual bool is_terminal() const = 0;
};

// Reads lines of `fd` without prompts. A line of more than kTextBytesMax (text_input.h) ends the input. Borrows both.
std::unique_ptr<LineReader> read_lines_from(int fd, Interrupts& interrupts);

// Edits lines on standard input and shows them on `output` (stdout or stderr), with the history of `history_path` (empty: in
// memory only). At most one exists in a process, because libedit owns the terminal's modes while a line is read.
std::unique_ptr<LineReader> edit_lines(std::FILE* output, std::string history_path, Interrupts& interrupts);

// The longest text with which all `texts` begin.
[[nodiscard]] std::string common_beginning(const std::vector<std::string>& texts);

}  // namespace uma::cli
