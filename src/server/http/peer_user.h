// The local user at the other end of a TCP connection, according to the socket diagnostics of Linux (sock_diag(7)). Elsewhere
// it is not known. docs/decisions/0041 describes the query and why its answer can be trusted.
#pragma once

#include <cstdint>
#include <netinet/in.h>
#include <sys/types.h>

#include "base/system/unique_fd.h"
#include "core/error.h"

namespace uma::server {

// One end of a connection. An IPv4 address is mapped into IPv6.
struct TcpEnd {
  in6_addr address{};
  in_port_t port = 0;  // In network byte order.

  friend bool operator==(const TcpEnd& left, const TcpEnd& right) {
    return left.port == right.port && IN6_ARE_ADDR_EQUAL(&left.address, &right.address) != 0;
  }
};

// Errors have the code `auth`, and a message that continues "it is not known whose connection this is: ". Owned by one thread.
// A query takes two system calls on one socket, a few microseconds, and never waits.
class PeerUsers {
 public:
  // Opens the socket for queries. A query opens it, too, if necessary.
  [[nodiscard]] Expected<Unit> open();

  // The user whose process created the socket at the other end of `connection`. The process may have passed the socket on, or
  // may have another user now. Errors: that socket is closed, or in another network namespace; its user is unknown in this user
  // namespace; the kernel cannot be queried.
  [[nodiscard]] Expected<uid_t> user_of(int connection);

  // Like user_of(), for the socket at `end` that is connected to `other`.
  [[nodiscard]] Expected<uid_t> user_at(const TcpEnd& end, const TcpEnd& other);

 private:
  Expected<uid_t> ask(const TcpEnd& end, const TcpEnd& other);

  // For the kernel of Linux. Other systems are not asked.
  UniqueFd netlink_;
  [[maybe_unused]] std::uint32_t sequence_ = 0;  // Number of the last query.
};

}  // namespace uma::server
