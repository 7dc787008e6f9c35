#include "server/http/peer_user.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <format>
#include <fstream>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/tcp.h>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <system_error>

namespace uma::server {
namespace {

// The loopback's index in every network namespace. Sockets that are bound to the device are found only by its index.
constexpr std::uint32_t kLoopbackInterface = 1;

constexpr std::string_view kIsClosed = "its other end is closed";

std::unexpected<Error> unknown_peer(std::string why) {
  return fail(ErrorCode::auth, std::move(why));
}

std::unexpected<Error> cannot_ask(int problem) {
  return unknown_peer(std::format("the kernel cannot be queried ({}): umad's sandbox must allow AF_NETLINK",
                                  std::generic_category().message(problem)));
}

TcpEnd mapped_end(std::span<const std::byte> v4, in_port_t port) {
  TcpEnd end{.address = {}, .port = port};
  end.address.s6_addr[10] = end.address.s6_addr[11] = 0xff;
  std::memcpy(&end.address.s6_addr[12], v4.data(), sizeof(in_addr));
  return end;
}

// The address that getsockname or getpeername returns; nullopt if the connection was reset.
std::optional<TcpEnd> end_of(int connection, int (*name)(int, sockaddr*, socklen_t*)) {
  union {
    sockaddr any;
    sockaddr_in v4;
    sockaddr_in6 v6;
  } address{};
  socklen_t size = sizeof(address);
  if (name(connection, &address.any, &size) != 0) return std::nullopt;
  if (address.any.sa_family == AF_INET)
    return mapped_end(std::as_bytes(std::span(&address.v4.sin_addr, 1)), address.v4.sin_port);
  if (address.any.sa_family == AF_INET6) return TcpEnd{.address = address.v6.sin6_addr, .port = address.v6.sin6_port};
  return std::nullopt;
}

// Writes an address in the kernel's format: an IPv4 address is the first of four words.
void write_address(std::span<__be32, 4> words, const in6_addr& address, bool is_v4) {
  const std::size_t skipped = is_v4 ? sizeof(in6_addr) - sizeof(in_addr) : 0;
  std::memcpy(words.data(), &address.s6_addr[skipped], sizeof(in6_addr) - skipped);
}

TcpEnd read_end(std::span<const __be32, 4> words, in_port_t port, bool is_v4) {
  if (is_v4) return mapped_end(std::as_bytes(words), port);
  TcpEnd end{.address = {}, .port = port};
  std::memcpy(&end.address, words.data(), sizeof(end.address));
  return end;
}

// The uid that represents every user unknown to a user namespace.
uid_t overflow_uid() {
  constexpr uid_t kUsual = 65'534;
  uid_t uid = kUsual;
  std::ifstream("/proc/sys/kernel/overflowuid") >> uid;
  return uid != 0 ? uid : kUsual;
}

// The user of the socket at `end` with the peer `other`, according to a reply.
Expected<uid_t> user_in(const inet_diag_msg& reply, const TcpEnd& end, const TcpEnd& other) {
  const bool is_v4 = reply.idiag_family == AF_INET;
  // Without such a connection, the kernel may describe a socket that listens at `end`.
  const bool is_connected =
      reply.idiag_state == TCP_ESTABLISHED || reply.idiag_state == TCP_FIN_WAIT1 || reply.idiag_state == TCP_FIN_WAIT2;
  const bool is_asked_for = read_end(reply.id.idiag_src, reply.id.idiag_sport, is_v4) == end &&
                            read_end(reply.id.idiag_dst, reply.id.idiag_dport, is_v4) == other;
  // A socket without a process has no inode; older kernels report root as its user.
  if (!is_connected || !is_asked_for || reply.idiag_inode == 0) return unknown_peer(std::string(kIsClosed));
  static const uid_t overflow = overflow_uid();
  if (reply.idiag_uid == overflow) {
    return unknown_peer(std::format("uid {} also represents users of other user namespaces", reply.idiag_uid));
  }
  return reply.idiag_uid;
}

}  // namespace

Expected<Unit> PeerUsers::open() {
  if (netlink_.is_open()) return Unit{};
  UniqueFd opened(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG));
  sockaddr_nl kernel{};
  kernel.nl_family = AF_NETLINK;
  // A socket that is connected to the kernel receives messages from nobody else.
  if (!opened.is_open() || ::connect(opened.get(), reinterpret_cast<const sockaddr*>(&kernel), sizeof(kernel)) != 0) {
    return cannot_ask(errno);
  }
  netlink_ = std::move(opened);
  return Unit{};
}

Expected<uid_t> PeerUsers::user_of(int connection) {
  const std::optional<TcpEnd> ours = end_of(connection, ::getsockname);
  const std::optional<TcpEnd> theirs = end_of(connection, ::getpeername);
  if (!ours || !theirs) return unknown_peer(std::string(kIsClosed));
  const Expected<uid_t> user = user_at(*theirs, *ours);
  // After a reset, other sockets may have taken the connection's addresses, and the kernel may have described those. While the
  // connection stands, nobody can.
  if (!end_of(connection, ::getpeername)) return unknown_peer(std::string(kIsClosed));
  return user;
}

Expected<uid_t> PeerUsers::user_at(const TcpEnd& end, const TcpEnd& other) {
  if (auto opened = open(); !opened) return std::unexpected(opened.error());
  return ask(end, other);
}

Expected<uid_t> PeerUsers::ask(const TcpEnd& end, const TcpEnd& other) {
  const bool is_v4 = IN6_IS_ADDR_V4MAPPED(&end.address) && IN6_IS_ADDR_V4MAPPED(&other.address);
  struct {
    nlmsghdr header;
    inet_diag_req_v2 body;
  } question{};
  question.header.nlmsg_len = sizeof(question);
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST;
  question.header.nlmsg_seq = ++sequence_;
  question.body.sdiag_family = is_v4 ? AF_INET : AF_INET6;
  question.body.sdiag_protocol = IPPROTO_TCP;
  question.body.idiag_states = ~0U;
  inet_diag_sockid& id = question.body.id;
  id.idiag_sport = end.port;
  id.idiag_dport = other.port;
  write_address(id.idiag_src, end.address, is_v4);
  write_address(id.idiag_dst, other.address, is_v4);
  id.idiag_if = kLoopbackInterface;
  std::ranges::fill(id.idiag_cookie, INET_DIAG_NOCOOKIE);

  // The kernel answers synchronously, so the reply is available now or never.
  alignas(nlmsghdr) std::array<std::byte, 4096> reply{};
  ssize_t size = ::send(netlink_.get(), &question, sizeof(question), 0);
  if (size >= 0) size = ::recv(netlink_.get(), reply.data(), reply.size(), 0);
  if (size < 0) {
    const int problem = errno;
    netlink_.reset();  // The next query gets a new socket, without replies to this one.
    return cannot_ask(problem);
  }
  nlmsghdr header{};
  const auto length = static_cast<std::size_t>(size);
  if (length >= sizeof(header)) std::memcpy(&header, reply.data(), sizeof(header));
  const auto is_reply = [&](int type, std::size_t body_bytes) {
    return header.nlmsg_seq == sequence_ && header.nlmsg_type == type && length >= NLMSG_HDRLEN + body_bytes;
  };
  if (is_reply(NLMSG_ERROR, sizeof(int))) {
    int problem = 0;
    std::memcpy(&problem, reply.data() + NLMSG_HDRLEN, sizeof(problem));
    if (problem != -ENOENT) return cannot_ask(-problem);
    return unknown_peer("its other end is closed or in another network namespace, or the kernel has no tcp_diag");
  }
  if (!is_reply(SOCK_DIAG_BY_FAMILY, sizeof(inet_diag_msg))) {
    netlink_.reset();
    return cannot_ask(EBADMSG);
  }
  inet_diag_msg body{};
  std::memcpy(&body, reply.data() + NLMSG_HDRLEN, sizeof(body));
  return user_in(body, end, other);
}

}  // namespace uma::server
