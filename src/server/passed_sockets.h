// Listening sockets that a service manager opened and passes to the daemon at its start: socket activation, sd_listen_fds(3).
// The daemon serves on them and leaves their files alone, so that clients wait in the backlog while the daemon restarts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/system/unique_fd.h"
#include "core/error.h"

namespace uma::server {

struct PassedUnixSocket {
  UniqueFd fd;
  std::string path;
};

// A TCP socket for HTTP.
struct PassedTcpSocket {
  UniqueFd fd;
  std::string address;  // Numeric address.
  std::uint16_t port = 0;
};

struct PassedSockets {
  std::optional<PassedUnixSocket> unix_socket;  // For the daemon's own protocol.
  std::optional<PassedTcpSocket> tcp;
  UniqueFd tcp_twin;                            // At [::1], if `tcp` is at 127.0.0.1 with the same port; closed: none.
  std::optional<PassedUnixSocket> http_socket;  // For HTTP.
};

// The name in LISTEN_FDNAMES of a Unix socket for HTTP.
inline constexpr std::string_view kHttpSocketName = "http";

// Takes the sockets that LISTEN_PID and LISTEN_FDS announce to this process, and unsets both variables. Takes none if they name
// another process. Called once, before other threads read the environment. Errors: those of sort_passed_sockets(), an invalid
// number of descriptors, and descriptors that are not open.
[[nodiscard]] Expected<PassedSockets> take_passed_sockets();

// Sorts descriptors by their use. A listening Unix stream socket with a file name is for the daemon's protocol, or for HTTP if
// `names`, which may be shorter, calls it kHttpSocketName; a listening TCP socket is for HTTP, and so are those of both
// loopback addresses. Errors name the descriptor: any other socket, or a second socket of one kind.
[[nodiscard]] Expected<PassedSockets> sort_passed_sockets(std::vector<UniqueFd> descriptors,
                                                          const std::vector<std::string>& names = {});

}  // namespace uma::server
