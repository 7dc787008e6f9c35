#pragma once

#include <spawn.h>

namespace uma::umad {

// Keeps all descriptors but the first three from the child that posix_spawn() starts with these actions. Returns flags for its
// attributes.
[[nodiscard]] short close_other_files(posix_spawn_file_actions_t& actions);

}  // namespace uma::umad
