// Prompts from standard input.
#pragma once

#include <string>

#include "uma-cli/interrupts.h"
#include "uma-cli/result.h"

namespace uma::cli {

// True when `fd` is a pipe, a file or a socket: something that ends. A terminal or /dev/null is not piped input.
[[nodiscard]] bool is_piped(int fd);

// All of `fd` up to its end, without one newline at the end. Blocks; says so on standard error when nothing comes for two
// seconds and `note_waiting` is set. Larger than any request may be, not UTF-8 or with a NUL byte: a usage failure.
[[nodiscard]] Result<std::string> read_prompt(int fd, bool note_waiting, Interrupts& interrupts);

// Refuses text that the protocol cannot carry; `what` names it in the message.
[[nodiscard]] Result<void> check_text(std::string_view text, std::string_view what);

}  // namespace uma::cli
