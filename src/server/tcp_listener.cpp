#include "server/tcp_listener.h"

#include <arpa/inet.h>
#include <cerrno>
#include <format>
#include <netinet/in.h>
#include <sys/socket.h>
#include <system_error>

#include "base/system/descriptors.h"

namespace uma::server {
namespace {

union TcpAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

}  // namespace

Expected<UniqueFd> listen_at_address(const std::string& address, std::uint16_t port, int backlog) {
  TcpAddress where{};
  socklen_t size = 0;
  if (::inet_pton(AF_INET, address.c_str(), &where.v4.sin_addr) == 1) {
    where.v4.sin_family = AF_INET;
    where.v4.sin_port = htons(port);
    size = sizeof(where.v4);
  } else if (::inet_pton(AF_INET6, address.c_str(), &where.v6.sin6_addr) == 1) {
    where.v6.sin6_family = AF_INET6;
    where.v6.sin6_port = htons(port);
    size = sizeof(where.v6);
  } else {
    return fail(ErrorCode::proto_field, std::format("http: {} is not a numeric address", address));
  }
  const auto fail_errno = [&] {
    return fail(ErrorCode::io_failed,
                std::format("http: cannot listen on {} port {}: {}", address, port, std::generic_category().message(errno)));
  };
  UniqueFd fd = open_socket(where.any.sa_family, SOCK_STREAM);
  if (fd.is_open()) make_nonblocking(fd.get());
  constexpr int kOn = 1;
  if (!fd.is_open() || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &kOn, sizeof(kOn)) != 0 ||
      ::bind(fd.get(), &where.any, size) != 0 || ::listen(fd.get(), backlog) != 0) {
    return fail_errno();
  }
  return fd;
}

Expected<UniqueFd> listen_at_twin(std::uint16_t port, int backlog) {
  UniqueFd probe = open_socket(AF_INET6, SOCK_STREAM);
  TcpAddress where{};
  where.v6.sin6_family = AF_INET6;
  where.v6.sin6_addr = in6addr_loopback;
  if (!probe.is_open() || ::bind(probe.get(), &where.any, sizeof(where.v6)) != 0) return UniqueFd();
  probe.reset();  // It has some port, which may be the wanted one.
  return listen_at_address(std::string(kLoopbackTwin), port, backlog);
}

}  // namespace uma::server
