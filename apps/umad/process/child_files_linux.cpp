#include "umad/process/child_files.h"

#include <unistd.h>

namespace uma::umad {

short close_other_files(posix_spawn_file_actions_t& actions) {
  ::posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  return 0;
}

}  // namespace uma::umad
