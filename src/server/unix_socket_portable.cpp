#include "server/unix_socket.h"

#include <cerrno>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace uma::server {

std::optional<UnixPeer> unix_peer_of([[maybe_unused]] int connection) {
#if defined(__APPLE__) || defined(__FreeBSD__) || defined(__NetBSD__) || defined(__OpenBSD__) || defined(__DragonFly__)
  UnixPeer peer;
  gid_t group = 0;
  if (::getpeereid(connection, &peer.user, &group) != 0) return std::nullopt;
#ifdef __APPLE__
  socklen_t size = sizeof(peer.process);
  if (::getsockopt(connection, SOL_LOCAL, LOCAL_PEERPID, &peer.process, &size) != 0) peer.process = 0;
#endif
  return peer;
#else
  return std::nullopt;
#endif
}

// The mask is that of the whole process, so files that other threads make meanwhile are private, too.
int bind_privately(int socket, const sockaddr_un& address) {
  const mode_t before = ::umask(S_IXUSR | S_IRWXG | S_IRWXO);
  const int problem = ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
  ::umask(before);
  return problem;
}

}  // namespace uma::server
