// Creates the data folder and writes its files atomically.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/error.h"

namespace uma::umad {

// Creates the folder (mode 0700) and missing parents. Errors: E_IO_001 with path and reason, also if the path is not a folder
// or not writable.
[[nodiscard]] Expected<Unit> prepare_data_dir(const std::string& path);

// Free bytes of the folder's file system; 0 if unknown.
[[nodiscard]] std::uint64_t free_bytes(const std::string& path);

// Writes a file (mode 0600) under a temporary name and renames it: readers see the old content or the new content, and a full
// disk keeps the old one. Not synced, so a power failure may lose the file. Errors: E_IO_001 with path and reason.
[[nodiscard]] Expected<Unit> write_file_atomically(const std::string& path, std::string_view content);
// Like write_file_atomically(), and synced: after the return, the file survives a power failure.
[[nodiscard]] Expected<Unit> write_file_durably(const std::string& path, std::string_view content);

}  // namespace uma::umad
