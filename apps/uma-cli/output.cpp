#include "uma-cli/output.h"

#include <algorithm>
#include <cerrno>
#include <sys/ioctl.h>
#include <unistd.h>

#include "uma-cli/printable.h"

namespace uma::cli {
namespace {

// A pipe that poll() reports as writable takes this much without blocking (POSIX: PIPE_BUF).
constexpr std::size_t kChunkBytes = 4096;

}  // namespace

WriteEnd Output::write(std::string_view text) {
  return is_terminal_ ? write_verbatim(printable(text)) : write_verbatim(text);
}

WriteEnd Output::write_verbatim(std::string_view text) {
  while (!text.empty()) {
    if (!is_writable()) {
      pollfd target{.fd = fd_, .events = POLLOUT, .revents = 0};
      if (interrupts_.wait({&target, 1}) == Wake::signal && interrupts_.pending()) return WriteEnd::interrupted;
      continue;
    }
    const ssize_t written = ::write(fd_, text.data(), std::min(text.size(), kChunkBytes));
    if (written < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      error_number_ = errno;
      return errno == EPIPE || (errno == EIO && is_terminal_) ? WriteEnd::closed : WriteEnd::failed;
    }
    at_line_start_ = text[static_cast<std::size_t>(written) - 1] == '\n';
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return WriteEnd::done;
}

bool Output::is_writable() const {
  pollfd target{.fd = fd_, .events = POLLOUT, .revents = 0};
  return poll(&target, 1, 0) > 0;
}

Window Output::window() const {
  winsize size{};
  if (ioctl(fd_, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) return {};
  return {size.ws_row, size.ws_col};
}

bool Output::is_closed() const {
  pollfd target{.fd = fd_, .events = 0, .revents = 0};
  return poll(&target, 1, 0) > 0 && (target.revents & (POLLERR | POLLHUP)) != 0;
}

}  // namespace uma::cli
