#include "base/system/descriptors.h"

#include <sys/socket.h>

namespace uma {

UniqueFd open_socket(int family, int type, int protocol) {
  return UniqueFd(::socket(family, type | SOCK_CLOEXEC, protocol));
}

std::optional<Pipe> open_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  return Pipe{.out = UniqueFd(ends[0]), .in = UniqueFd(ends[1])};
}

}  // namespace uma
