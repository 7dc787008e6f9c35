// Makes created, renamed and removed files of a folder durable.
#pragma once

#include <string>

namespace uma {

// Blocks until the folder's entries are on the disk. Empty: the current folder. Returns an errno, or 0, which is also the
// result for file systems that cannot sync folders (EINVAL).
[[nodiscard]] int sync_folder(const std::string& folder);

}  // namespace uma
