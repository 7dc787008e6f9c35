// A listening TCP socket.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/system/unique_fd.h"
#include "core/error.h"

namespace uma::server {

// Listens at a numeric IPv4 or IPv6 address; port 0 means any free port. The socket is non-blocking and close-on-exec. Errors:
// an invalid address, and errors of the system with the address.
[[nodiscard]] Expected<UniqueFd> listen_at_address(const std::string& address, std::uint16_t port, int backlog);

// The address that programs mean by "localhost" besides 127.0.0.1, and try first.
inline constexpr std::string_view kLoopback = "127.0.0.1";
inline constexpr std::string_view kLoopbackTwin = "::1";
// Listens at kLoopbackTwin. Closed: the system has no IPv6. Errors: as listen_at_address().
[[nodiscard]] Expected<UniqueFd> listen_at_twin(std::uint16_t port, int backlog);

}  // namespace uma::server
