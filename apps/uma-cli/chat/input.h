// Prompts from standard input.
#pragma once

#include <string>

#include "uma-cli/chat/interrupts.h"
#include "uma-cli/result.h"

namespace uma::cli {

// True if `fd` is a pipe, a file or a socket, so that reading it comes to an end. A terminal or /dev/null is not piped input.
[[nodiscard]] bool is_piped(int fd);

// Reads `fd` to its end and removes one newline there. Blocks; with `note_waiting` a remark goes to standard error after two
// seconds without input. Input that is larger than any request, is not UTF-8 or has a NUL byte is a usage failure.
[[nodiscard]] Result<std::string> read_prompt(int fd, bool note_waiting, Interrupts& interrupts);

// Refuses text that the protocol cannot carry. `what` is the text's name in the message.
[[nodiscard]] Result<void> check_text(std::string_view text, std::string_view what);

}  // namespace uma::cli
