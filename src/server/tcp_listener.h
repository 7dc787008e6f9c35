// A listening TCP socket.
#pragma once

#include <cstdint>
#include <string>

#include "base/unique_fd.h"
#include "core/error.h"

namespace uma::server {

// Listens at a numeric IPv4 or IPv6 address; port 0 means any free port. The socket is non-blocking and close-on-exec. Errors:
// an invalid address, and errors of the system with the address.
[[nodiscard]] Expected<UniqueFd> listen_at_address(const std::string& address, std::uint16_t port, int backlog);

}  // namespace uma::server
