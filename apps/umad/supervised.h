// What the supervisor (supervisor.h) tells the daemon that it starts, in the environment, and how the daemon answers it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>

#include "core/metrics_snapshot.h"

namespace uma::umad {

inline constexpr const char* kSupervisedVariable = "UMA_SUPERVISED";

struct Supervised {
  pid_t supervisor = 0;
  bool made_socket = false;   // the daemon's Unix socket; else it was passed to the supervisor
  std::uint64_t crashes = 0;  // of the daemons before this one
  int last_signal = 0;        // that ended the last of them; 0: it ended itself, with last_status
  int last_status = 0;
  std::int64_t last_unix_s = 0;  // of that

  bool operator==(const Supervised&) const = default;
  // The last one ended by a fault of its own, as memory that is not its own or an abort; not by a signal that somebody sent
  // or by the kernel for want of memory.
  [[nodiscard]] bool ended_by_fault() const;
  [[nodiscard]] CrashRecord record() const;
};

// One line of text, and back; nothing where it is none.
[[nodiscard]] std::string supervised_text(const Supervised& supervised);
[[nodiscard]] std::optional<Supervised> parse_supervised(std::string_view text);

// "signal 11", "status 99".
[[nodiscard]] std::string end_text(int signal, int status);

// Reads the variable and unsets it; nothing where no supervisor started this process. From then on this process ends with its
// supervisor. Ends the process at once where that has gone already. Called before other threads exist.
[[nodiscard]] std::optional<Supervised> take_supervised();

// Tells the supervisor that the daemon serves.
void tell_ready(const Supervised& supervised);

}  // namespace uma::umad
