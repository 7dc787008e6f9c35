#include "umad/process/supervised.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <format>
#include <sstream>
#include <unistd.h>

#include "base/check.h"
#include "umad/process/parent_end.h"

namespace uma::umad {

bool Supervised::ended_by_fault() const {
  switch (last_signal) {
    case SIGABRT:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGSEGV:
    case SIGSYS:
    case SIGTRAP:
      return true;
    default:
      return false;
  }
}

CrashRecord Supervised::record() const {
  if (crashes == 0) return {};
  return {.count = crashes, .last_cause = end_text(last_signal, last_status), .last_unix_s = last_unix_s};
}

std::string end_text(int signal, int status) {
  return signal != 0 ? std::format("signal {}", signal) : std::format("status {}", status);
}

std::string supervised_text(const Supervised& supervised) {
  return std::format("{} {:d} {} {} {} {}", supervised.supervisor, supervised.made_socket, supervised.crashes,
                     supervised.last_signal, supervised.last_status, supervised.last_unix_s);
}

std::optional<Supervised> parse_supervised(std::string_view text) {
  std::istringstream words{std::string(text)};
  Supervised read;
  words >> read.supervisor >> read.made_socket >> read.crashes >> read.last_signal >> read.last_status >> read.last_unix_s;
  if (!words || !(words >> std::ws).eof()) return std::nullopt;
  return read;
}

std::optional<Supervised> take_supervised() {
  const char* text = std::getenv(kSupervisedVariable);
  if (text == nullptr) return std::nullopt;
  const auto supervised = parse_supervised(text);
  ::unsetenv(kSupervisedVariable);
  if (!supervised) {
    std::fputs(std::format("umad: the variable {} is reserved for umad --supervise: unset it\n", kSupervisedVariable).c_str(),
               stderr);
    std::exit(1);
  }
  // The second call detects a supervisor that ended before the first.
  UMA_CHECK(end_with_parent());
  if (::getppid() != supervised->supervisor) {
    std::fputs("umad: the supervisor that started this process has ended\n", stderr);
    std::exit(1);
  }
  return supervised;
}

void tell_ready(const Supervised& supervised) {
  ::kill(supervised.supervisor, SIGUSR2);
}

}  // namespace uma::umad
