// How the program ends, and why: every failure becomes an exit code and one sentence on standard error.
#pragma once

#include <expected>
#include <string>
#include <utility>

namespace uma::cli {

enum class ExitCode : int {
  success = 0,
  usage = 1,
  server = 2,    // the daemon (for pull: the server, the network or the disk) reported an error, or there is no connection
  protocol = 3,  // what came is not what the protocol allows (for pull: not the file that was asked for)
  interrupted = 130,
};

struct Failure {
  ExitCode exit_code;
  std::string message;      // empty: nothing to say (the user pressed Ctrl-C)
  std::string server_code;  // "E_SESSION_001" and so on; empty unless the daemon reported it
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
