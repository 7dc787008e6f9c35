#include "base/system/descriptors.h"

#include <sys/socket.h>

namespace uma {
namespace {

void keep_from_children(int descriptor) {
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
}

}  // namespace

UniqueFd open_socket(int family, int type, int protocol) {
  UniqueFd opened(::socket(family, type, protocol));
  if (opened.is_open()) keep_from_children(opened.get());
  return opened;
}

std::optional<Pipe> open_pipe() {
  int ends[2];
  if (::pipe(ends) != 0) return std::nullopt;
  for (const int end : ends) keep_from_children(end);
  return Pipe{.out = UniqueFd(ends[0]), .in = UniqueFd(ends[1])};
}

}  // namespace uma
