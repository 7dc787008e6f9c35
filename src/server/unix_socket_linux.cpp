#include "server/unix_socket.h"

#include <cerrno>
#include <sys/socket.h>
#include <sys/stat.h>

namespace uma::server {

std::optional<UnixPeer> unix_peer_of(int connection) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  return UnixPeer{.user = peer.uid, .process = peer.pid};
}

int bind_privately(int socket, const sockaddr_un& address) {
  // The file inherits the socket's mode.
  if (::fchmod(socket, S_IRUSR | S_IWUSR) != 0) return errno;
  return ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
}

}  // namespace uma::server
