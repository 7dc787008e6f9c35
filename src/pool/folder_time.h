// When a folder was changed last, so that it is read again only if files came or went.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace uma::pool {

struct FolderTime {
  std::string folder;
  std::optional<std::int64_t> modified_ns;  // 0: there is no such folder. Nullopt: it may change without another time.
};

// The time of the folder now. Call it before the folder is read.
[[nodiscard]] FolderTime time_of(std::string folder);

// Whether the folder may have changed since then. A system call.
[[nodiscard]] bool has_changed(const FolderTime& known);

}  // namespace uma::pool
