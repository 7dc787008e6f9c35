#include "llm/device/rpc_sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace uma::llm {

bool is_peer_own(int) {
  return true;
}

ssize_t send_quietly(int fd, std::span<const std::byte> bytes) {
#ifdef SO_NOSIGPIPE
  const int on = 1;
  (void)::setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
  return ::send(fd, bytes.data(), bytes.size(), 0);
}

void keep_alive(int fd) {
  const int on = 1;
  (void)::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

bool is_unacknowledged(int, std::chrono::milliseconds) {
  return false;
}

}  // namespace uma::llm
