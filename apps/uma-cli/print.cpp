#include "uma-cli/print.h"

#include <cstring>
#include <format>
#include <iostream>

#include "uma-cli/printable.h"

namespace uma::cli {

Result<void> print(Output& output, std::string_view text) {
  switch (output.write(text)) {
    case WriteEnd::done:
    case WriteEnd::closed:
      break;
    case WriteEnd::interrupted:
      return interrupted();
    case WriteEnd::failed:
      return fail(ExitCode::server, std::format("cannot write the output: {}", std::strerror(output.error_number())));
  }
  return {};
}

void report(const Failure& failure) {
  if (failure.message.empty()) return;
  std::string line = "uma-cli: " + printable(failure.message);
  if (!failure.server_code.empty()) line += std::format(" ({})", printable(failure.server_code));
  std::cerr << line << std::endl;
}

}  // namespace uma::cli
