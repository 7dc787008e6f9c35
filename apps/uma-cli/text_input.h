// Reads a whole text from standard input or a file (a chat reads lines: chat/line_reader.h), and checks texts of any origin.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "uma-cli/interrupts.h"
#include "uma-cli/result.h"

namespace uma::cli {

// True if `fd` is a pipe, a file or a socket, so that reading it comes to an end. A terminal or /dev/null is not piped input.
[[nodiscard]] bool is_piped(int fd);

// The most bytes of a text or line that this program reads. The daemon's own limit (`limits.max_frame_bytes`) is another.
inline constexpr std::size_t kTextBytesMax = 64u << 20;

// Reads `fd` to its end and removes one newline there. `what` is the input's name in messages. Blocks; with `note_waiting` a
// remark goes to standard error if nothing has come after two seconds. Input that cannot be read, has more than kTextBytesMax,
// or fails check_text() is a usage failure; a Ctrl-C is an interrupted one.
[[nodiscard]] Result<std::string> read_whole(int fd, std::string_view what, bool note_waiting, Interrupts& interrupts);

// Refuses text that the protocol cannot carry: no UTF-8, or a NUL byte. `what` is the text's name in the message.
[[nodiscard]] Result<void> check_text(std::string_view text, std::string_view what);

}  // namespace uma::cli
