#include "umad/process/child_files.h"

#include <fcntl.h>
#include <unistd.h>

namespace uma::umad {

short close_other_files([[maybe_unused]] posix_spawn_file_actions_t& actions) {
#ifdef __APPLE__
  return POSIX_SPAWN_CLOEXEC_DEFAULT;
#else
  // A descriptor that a thread of this program opens later is close-on-exec.
  const long descriptors = ::sysconf(_SC_OPEN_MAX);
  for (int descriptor = STDERR_FILENO + 1; descriptor < descriptors; ++descriptor) {
    const int flags = ::fcntl(descriptor, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) ::posix_spawn_file_actions_addclose(&actions, descriptor);
  }
  return 0;
#endif
}

}  // namespace uma::umad
