// The listening sockets that a service manager opened for the daemon and passes at its start: socket activation,
// sd_listen_fds(3). The daemon serves on them and leaves their names in the file system alone, so clients that come while it
// restarts wait in the backlog.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "core/error.h"

namespace uma::server {

// For the daemon's own protocol.
struct PassedUnixSocket {
  UniqueFd fd;
  std::string path;
};

// For HTTP.
struct PassedTcpSocket {
  UniqueFd fd;
  std::string address;  // as a number
  std::uint16_t port = 0;
};

struct PassedSockets {
  std::optional<PassedUnixSocket> unix_socket;
  std::optional<PassedTcpSocket> tcp;
};

// Takes the sockets that LISTEN_PID and LISTEN_FDS announce to this process, and unsets both; none where they name another
// process. To be called once, before other threads read the environment. Errors: as of sort_passed_sockets(), and a number of
// descriptors that is none or that are not open.
[[nodiscard]] Expected<PassedSockets> take_passed_sockets();

// A listening Unix stream socket with a name in the file system is the daemon's, a listening TCP socket is for HTTP. Errors
// name the descriptor: anything else, and a second one of a kind.
[[nodiscard]] Expected<PassedSockets> sort_passed_sockets(std::vector<UniqueFd> descriptors);

}  // namespace uma::server
