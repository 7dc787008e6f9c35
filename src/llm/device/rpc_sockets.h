// The socket functions that the relay to an RPC server needs, and those that differ between systems.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <sys/types.h>

namespace uma::llm {

// Whether the other end of a connection over the loopback is a socket of this process. Where the system does not say so, every
// program of this machine counts.
[[nodiscard]] bool is_peer_own(int fd);
// Like send(), but without a signal if the other end is closed.
[[nodiscard]] ssize_t send_quietly(int fd, std::span<const std::byte> bytes);
// Lets the system notice within some seconds that the other machine is gone, also while nothing is sent.
void keep_alive(int fd);
// Whether the other machine has not acknowledged what it was sent for that long. Where the system does not say so: false.
[[nodiscard]] bool is_unacknowledged(int fd, std::chrono::milliseconds since);

}  // namespace uma::llm
