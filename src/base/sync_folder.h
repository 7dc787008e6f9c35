// Makes names last: those that were made, renamed or removed in a folder.
#pragma once

#include <string>

namespace uma {

// Blocks until the folder's names are on the disk. Empty: the current one. Returns 0, also where a file system cannot do that
// for folders (it says EINVAL), or else an errno.
[[nodiscard]] int sync_folder(const std::string& folder);

}  // namespace uma
