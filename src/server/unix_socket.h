// Calls on Unix sockets that systems have in different forms.
#pragma once

#include <optional>
#include <sys/types.h>
#include <sys/un.h>

namespace uma::server {

struct UnixPeer {
  uid_t user = 0;
  pid_t process = 0;  // 0: the system does not tell.
};

// The user and process that connected to the other end. Nullopt if the system does not tell.
[[nodiscard]] std::optional<UnixPeer> unix_peer_of(int connection);

// Binds a socket to a file with the mode 0600, which the file has from the first moment, whatever the umask is. Returns 0 or an
// errno.
[[nodiscard]] int bind_privately(int socket, const sockaddr_un& address);

}  // namespace uma::server
