#include "llm/own_socket.h"

#include <arpa/inet.h>
#include <filesystem>
#include <format>
#include <fstream>
#include <netinet/in.h>
#include <sstream>
#include <string>
#include <sys/socket.h>
#include <system_error>

namespace uma::llm {
namespace {

// As /proc writes it: the address as a number of this machine, in hexadecimal digits.
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

}  // namespace uma::llm
