// Writes the whole output of a command, or reports an error.
#pragma once

#include <string_view>

#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

// Succeeds if the reader left (`| head -1`), because it has what it wanted.
Result<void> print(Output& output, std::string_view text);

// Prints "uma-cli: MESSAGE (CODE)" on standard error, safe for a terminal. A failure without a message prints nothing.
void report(const Failure& failure);

}  // namespace uma::cli
