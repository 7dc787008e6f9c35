#include "server/passed_sockets.h"

#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <format>
#include <netinet/in.h>
#include <string_view>
#include <sys/socket.h>
#include <sys/un.h>
#include <system_error>
#include <utility>

#include "server/service_manager.h"
#include "server/tcp_listener.h"

namespace uma::server {
namespace {

union SocketAddress {
  sockaddr any;
  sockaddr_un local;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

std::unexpected<Error> refuse(int fd, std::string_view what) {
  return fail(ErrorCode::io_failed, std::format("the service manager passed descriptor {}, {}", fd, what));
}

Expected<int> option_of(int fd, int option) {
  int value = 0;
  socklen_t size = sizeof(value);
  if (::getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0) return value;
  if (errno == ENOTSOCK) return refuse(fd, "which is not a socket: remove its directive from the unit");
  return refuse(fd, std::format("which cannot be examined: {}", std::generic_category().message(errno)));
}

// The socket's file name; empty: none.
std::string path_of(const sockaddr_un& address, socklen_t size) {
  const std::size_t bytes = size - offsetof(sockaddr_un, sun_path);
  if (size <= offsetof(sockaddr_un, sun_path) || address.sun_path[0] == '\0') return "";
  return {address.sun_path, ::strnlen(address.sun_path, bytes)};
}

Expected<Unit> add(PassedSockets& sockets, UniqueFd fd, std::string_view name) {
  const int number = fd.get();
  const auto type = option_of(number, SO_TYPE);
  if (!type) return std::unexpected(type.error());
  if (*type != SOCK_STREAM) return refuse(number, "which is not a stream socket: use ListenStream= in the socket unit");
  const auto is_listening = option_of(number, SO_ACCEPTCONN);
  if (!is_listening) return std::unexpected(is_listening.error());
  if (*is_listening == 0) {
    return refuse(number, "which is not listening: use ListenStream= and Accept=no in the socket unit");
  }
  SocketAddress address{};
  socklen_t size = sizeof(address);
  if (::getsockname(number, &address.any, &size) != 0) {
    return refuse(number, std::format("which has no address: {}", std::generic_category().message(errno)));
  }
  if (address.any.sa_family == AF_UNIX) {
    const std::string path = path_of(address.local, size);
    if (path.empty()) {
      return refuse(number,
                    "a Unix socket without a file, whose permissions would control access: "
                    "use ListenStream= with a path");
    }
    std::optional<PassedUnixSocket>& taken = name == kHttpSocketName ? sockets.http_socket : sockets.unix_socket;
    if (taken) {
      return refuse(number, std::format("the Unix socket {}, but also {}: the daemon serves one, so remove the other", path,
                                        taken->path));
    }
    taken = {.fd = std::move(fd), .path = path};
    return Unit{};
  }
  std::array<char, INET6_ADDRSTRLEN> text{};
  std::uint16_t port = 0;
  if (address.any.sa_family == AF_INET) {
    ::inet_ntop(AF_INET, &address.v4.sin_addr, text.data(), text.size());
    port = ntohs(address.v4.sin_port);
  } else if (address.any.sa_family == AF_INET6) {
    ::inet_ntop(AF_INET6, &address.v6.sin6_addr, text.data(), text.size());
    port = ntohs(address.v6.sin6_port);
  } else {
    return refuse(number, std::format("a socket of address family {}: use a Unix or TCP socket", address.any.sa_family));
  }
  const std::string_view shown = text.data();
  const auto is_twin = [&](std::string_view one, std::string_view other) {
    return sockets.tcp && sockets.tcp->port == port && sockets.tcp->address == one && shown == other;
  };
  if (!sockets.tcp_twin.is_open() && is_twin(kLoopback, kLoopbackTwin)) {
    sockets.tcp_twin = std::move(fd);
    return Unit{};
  }
  if (!sockets.tcp_twin.is_open() && is_twin(kLoopbackTwin, kLoopback)) {
    sockets.tcp_twin = std::move(sockets.tcp->fd);
    sockets.tcp.reset();
  }
  if (sockets.tcp) {
    return refuse(number,
                  std::format("the TCP socket {} port {}, but also {} port {}: HTTP is served on one, so remove the other",
                              text.data(), port, sockets.tcp->address, sockets.tcp->port));
  }
  sockets.tcp = {.fd = std::move(fd), .address = text.data(), .port = port};
  return Unit{};
}

}  // namespace

Expected<PassedSockets> take_passed_sockets() {
  const char* announced = std::getenv("LISTEN_FDS");
  const std::string count_text = announced == nullptr ? "" : announced;
  const auto names = take_passed_names();
  if (!names) {
    return fail(
        ErrorCode::io_failed,
        std::format("the sockets announced by LISTEN_FDS={} cannot be used: {}; start umad by its socket unit, or without "
                    "LISTEN_FDS",
                    count_text, std::generic_category().message(names.error())));
  }
  std::vector<UniqueFd> descriptors;
  for (std::size_t i = 0; i < names->size(); ++i) descriptors.emplace_back(kFirstPassedDescriptor + static_cast<int>(i));
  return sort_passed_sockets(std::move(descriptors), *names);
}

Expected<PassedSockets> sort_passed_sockets(std::vector<UniqueFd> descriptors, const std::vector<std::string>& names) {
  PassedSockets sockets;
  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    const std::string_view name = i < names.size() ? std::string_view(names[i]) : std::string_view();
    if (auto added = add(sockets, std::move(descriptors[i]), name); !added) return std::unexpected(added.error());
  }
  return sockets;
}

}  // namespace uma::server
