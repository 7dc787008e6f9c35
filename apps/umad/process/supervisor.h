// umad --supervise: a process that opens the daemon's sockets, starts the daemon as its child, passes it the sockets as a
// service manager does (server/passed_sockets.h), and restarts it after a crash. New clients wait in the sockets' queues
// meanwhile. See docs/decisions/0042.
//
// It stays small and robust: one thread, no model, no input from clients. It waits for signals one at a time
// (signal_wait.h).
#pragma once

#include <string>
#include <vector>

#include "server/passed_sockets.h"
#include "umad/config.h"

namespace uma::umad {

// `arguments` are those of main, including the program's name; the daemon gets the same. Forwards TERM, INT, HUP and USR1,
// which are blocked (signals.h). Returns after the daemon has stopped regularly, was asked to stop, or has a configuration
// error. Returns the daemon's exit status, or 128 plus the signal that ended it.
[[nodiscard]] int run_supervisor(const Config& config, server::PassedSockets passed, const std::vector<std::string>& arguments);

}  // namespace uma::umad
