#include "llm/device/rpc_sockets.h"

#include <arpa/inet.h>
#include <filesystem>
#include <format>
#include <fstream>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sstream>
#include <string>
#include <sys/socket.h>
#include <system_error>

namespace uma::llm {
namespace {

// The address as /proc writes it: as a number of this machine, in hexadecimal digits.
std::string address_text(const sockaddr_in& address) {
  return std::format("{:08X}:{:04X}", address.sin_addr.s_addr, ntohs(address.sin_port));
}

// The inode of the socket that has these ends; empty: none.
std::string inode_of(const std::string& local, const std::string& remote) {
  std::ifstream table("/proc/self/net/tcp");
  std::string line;
  while (std::getline(table, line)) {
    // sl, local, remote, state, queues, timer, retransmissions, user, timeouts, inode
    std::istringstream words(line);
    std::string number, from, to, other, inode;
    words >> number >> from >> to;
    if (from != local || to != remote) continue;
    for (int i = 0; i < 6; ++i) words >> other;
    words >> inode;
    return inode;
  }
  return {};
}

}  // namespace

bool is_peer_own(int fd) {
  sockaddr_in own{};
  sockaddr_in peer{};
  socklen_t own_size = sizeof own;
  socklen_t peer_size = sizeof peer;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) != 0 || own.sin_family != AF_INET) return false;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0 || peer.sin_family != AF_INET) return false;
  const std::string inode = inode_of(address_text(peer), address_text(own));
  if (inode.empty() || inode == "0") return false;
  const std::string wanted = std::format("socket:[{}]", inode);
  std::error_code problem;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", problem), end; !problem && entry != end;
       entry.increment(problem)) {
    std::error_code unread;  // Descriptors come and go.
    if (std::filesystem::read_symlink(entry->path(), unread) == wanted) return true;
  }
  return false;
}

ssize_t send_quietly(int fd, std::span<const std::byte> bytes) {
  return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

void keep_alive(int fd) {
  const auto set = [fd](int level, int name, int value) { (void)::setsockopt(fd, level, name, &value, sizeof value); };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

bool is_unacknowledged(int fd, std::chrono::milliseconds since) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  // A full buffer of the server is asked about ever more rarely, so silence means nothing then; nothing is unacknowledged.
  const bool repeats = info.tcpi_unacked > 0 && info.tcpi_retransmits > 0;
  return repeats && info.tcpi_last_ack_recv > static_cast<std::uint32_t>(since.count());
}

}  // namespace uma::llm
