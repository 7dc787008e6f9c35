// Every failure has an exit code and one sentence for standard error.
#pragma once

#include <expected>
#include <string>
#include <utility>

namespace uma::cli {

enum class ExitCode : int {
  success = 0,
  usage = 1,
  server = 2,    // The daemon (for pull: the server, the network or the disk) reported an error, or there is no connection.
  protocol = 3,  // The peer broke the protocol (for pull: the file is not the requested one).
  interrupted = 130,
};

struct Failure {
  ExitCode exit_code;
  std::string message;      // Empty: nothing to report, because the user pressed Ctrl-C.
  std::string server_code;  // "E_SESSION_001" and so on; empty unless the daemon reported it.
};

template <class T>
using Result = std::expected<T, Failure>;

inline std::unexpected<Failure> fail(ExitCode exit_code, std::string message, std::string server_code = "") {
  return std::unexpected(Failure{exit_code, std::move(message), std::move(server_code)});
}
inline std::unexpected<Failure> interrupted() {
  return fail(ExitCode::interrupted, "");
}

}  // namespace uma::cli
