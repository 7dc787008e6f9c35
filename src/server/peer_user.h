// Which user of this machine made the other end of a TCP connection, as the kernel's socket diagnostics say (sock_diag(7)).
// docs/decisions/0041 has what is asked for and why it can be believed.
#pragma once

#include <cstdint>
#include <netinet/in.h>
#include <sys/types.h>

#include "base/unique_fd.h"
#include "core/error.h"

namespace uma::server {

// One end of a connection; an IPv4 address is mapped into IPv6.
struct TcpEnd {
  in6_addr address{};
  in_port_t port = 0;  // in the byte order of the network

  friend bool operator==(const TcpEnd& left, const TcpEnd& right) {
    return left.port == right.port && IN6_ARE_ADDR_EQUAL(&left.address, &right.address) != 0;
  }
};

// Errors have the code `auth`, and a message that goes on after "it is not known whose connection this is: ".
// Owned by one thread. A question costs two system calls on one socket, a few microseconds, and never waits.
class PeerUsers {
 public:
  // Opens the socket that questions go through; they do so themselves where it is not open.
  [[nodiscard]] Expected<Unit> open();

  // Who made the socket that the connected socket `connection` is connected to: the process may have passed it on, or have
  // another user by now. Errors: that socket is closed, or of another network namespace; its user is none of this user
  // namespace; the kernel cannot be asked.
  [[nodiscard]] Expected<uid_t> user_of(int connection);

  // The same of the socket at `end` that is connected to `other`.
  [[nodiscard]] Expected<uid_t> user_at(const TcpEnd& end, const TcpEnd& other);

 private:
  Expected<uid_t> ask(const TcpEnd& end, const TcpEnd& other);

  UniqueFd netlink_;
  std::uint32_t sequence_ = 0;  // of the last question
};

}  // namespace uma::server
