// The listening sockets that a service manager opened for the daemon and passes at its start: socket activation,
// sd_listen_fds(3). The daemon serves on them and leaves their names in the file system alone, so clients that come while it
// restarts wait in the backlog.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"
#include "core/error.h"

namespace uma::server {

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
  std::optional<PassedUnixSocket> unix_socket;  // for the daemon's own protocol
  std::optional<PassedTcpSocket> tcp;
  std::optional<PassedUnixSocket> http_socket;  // for HTTP too
};

// What LISTEN_FDNAMES calls a Unix socket for HTTP.
inline constexpr std::string_view kHttpSocketName = "http";

// Takes the sockets that LISTEN_PID and LISTEN_FDS announce to this process, and unsets both; none where they name another
// process. To be called once, before other threads read the environment. Errors: as of sort_passed_sockets(), and a number of
// descriptors that is none or that are not open.
[[nodiscard]] Expected<PassedSockets> take_passed_sockets();

// A listening Unix stream socket with a name in the file system is the daemon's, or for HTTP where `names`, which may be
// shorter, calls it kHttpSocketName; a listening TCP socket is for HTTP. Errors name the descriptor: anything else, and a
// second one of a kind.
[[nodiscard]] Expected<PassedSockets> sort_passed_sockets(std::vector<UniqueFd> descriptors,
                                                          const std::vector<std::string>& names = {});

}  // namespace uma::server
