// umad --supervise: a process that opens the daemon's sockets, starts the daemon as its child, passes the sockets on as a
// service manager does (server/passed_sockets.h), and starts another when it crashes. Clients that come meanwhile wait in the
// sockets' queues. docs/decisions/0042.
//
// It stays small and hard to end: one thread, no model, nothing that it reads comes from a client. Signals are waited for one
// at a time, never handled asynchronously.
#pragma once

#include <string>
#include <vector>

#include "server/passed_sockets.h"
#include "umad/config.h"

namespace uma::umad {

// `arguments` are those of main, its own name first; the daemon gets them too. TERM, INT, HUP and USR1, which are blocked
// (signals.h), are passed on. Returns when the daemon has ended in order, was told to end, or cannot be configured: its exit
// status, or 128 and the signal that ended it.
[[nodiscard]] int run_supervisor(const Config& config, server::PassedSockets passed, const std::vector<std::string>& arguments);

}  // namespace uma::umad
