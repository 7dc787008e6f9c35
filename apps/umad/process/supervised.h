// The environment variable by which the supervisor (supervisor.h) informs a daemon, and the daemon's answer.
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
  bool made_socket = false;   // The supervisor created the daemon's Unix socket; otherwise the socket was passed to it.
  std::uint64_t crashes = 0;  // Crashes of earlier daemons.
  int last_signal = 0;        // Signal that ended the last daemon; 0: it exited with last_status.
  int last_status = 0;
  std::int64_t last_unix_s = 0;  // When the last daemon ended.

  bool operator==(const Supervised&) const = default;
  // The last daemon ended by its own fault, such as a segmentation fault or an abort, rather than by a signal from outside or
  // by the kernel for lack of memory.
  [[nodiscard]] bool ended_by_fault() const;
  [[nodiscard]] CrashRecord record() const;
};

// Converts to one line of text and back; nullopt for other text.
[[nodiscard]] std::string supervised_text(const Supervised& supervised);
[[nodiscard]] std::optional<Supervised> parse_supervised(std::string_view text);

// Text such as "signal 11" or "status 99".
[[nodiscard]] std::string end_text(int signal, int status);

// Reads and unsets the variable; nullopt if no supervisor started this process. From then on this process ends with its
// supervisor. Exits at once if the supervisor is already gone. Called before other threads exist.
[[nodiscard]] std::optional<Supervised> take_supervised();

// Notifies the supervisor that the daemon serves.
void tell_ready(const Supervised& supervised);

}  // namespace uma::umad
