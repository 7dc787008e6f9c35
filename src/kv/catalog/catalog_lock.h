// The lock that keeps a second umad out of a data folder.
#pragma once

#include <string>

#include "base/system/unique_fd.h"
#include "core/error.h"

namespace uma::kv {

// Locks `path`.lock until the descriptor is closed. A file of its own, because the lock must hold while a damaged catalog is
// replaced. Errors: E_IO_001, also if another process has the lock.
[[nodiscard]] Expected<UniqueFd> take_catalog_lock(const std::string& path);

}  // namespace uma::kv
