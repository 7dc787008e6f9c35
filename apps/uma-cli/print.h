// Writes a whole answer of a command, or says why that was not possible.
#pragma once

#include <string_view>

#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

// A reader that left (`| head -1`) is a success: it has what it wanted.
Result<void> print(Output& output, std::string_view text);

// "uma-cli: MESSAGE (CODE)" on standard error, safe for a terminal. Nothing for a failure without a message.
void report(const Failure& failure);

}  // namespace uma::cli
