// Descriptors that no child process inherits.
#pragma once

#include <cstddef>
#include <fcntl.h>
#include <optional>

#include "base/system/unique_fd.h"

namespace uma {

// Like socket(). Not open, with errno set, if it fails. Where the system cannot do it in one step, a child that another thread
// starts in the same moment may inherit it.
[[nodiscard]] UniqueFd open_socket(int family, int type, int protocol = 0);

struct Pipe {
  UniqueFd out;  // For reading.
  UniqueFd in;   // For writing.
};

// Like pipe(). Nullopt, with errno set, if it fails. The remark above holds, too.
[[nodiscard]] std::optional<Pipe> open_pipe();

// The most descriptors that this process may have open.
[[nodiscard]] std::size_t descriptors_max();

// Makes calls return at once where they would wait.
inline void make_nonblocking(int descriptor) {
  ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK);
}

}  // namespace uma
