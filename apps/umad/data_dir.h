// The folder of what the daemon keeps, and files in it that are whole or absent.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/error.h"

namespace uma::umad {

// Makes the folder (mode 0700) and its parents where they are missing. Errors: E_IO_001 with path and reason, also when the
// path is something else than a folder or cannot be written to.
[[nodiscard]] Expected<Unit> prepare_data_dir(const std::string& path);

// Bytes that are free where the folder is; 0 where the system does not say.
[[nodiscard]] std::uint64_t free_bytes(const std::string& path);

// Writes a file (mode 0600) under a temporary name, then renames it: readers see the old content or the new, never a part, and
// a full disk leaves the old. Not synced: for what may be lost with the machine. Errors: E_IO_001 with path and reason.
[[nodiscard]] Expected<Unit> write_file_atomically(const std::string& path, std::string_view content);
// The same, and synced: when it returns, the file and its name survive a loss of power.
[[nodiscard]] Expected<Unit> write_file_durably(const std::string& path, std::string_view content);

}  // namespace uma::umad
