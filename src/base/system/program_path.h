// The file of this program.
#pragma once

#include <filesystem>
#include <string>

namespace uma {

// Its path without symbolic links; empty where the system does not tell. If the file was replaced since the start, the
// path ends in " (deleted)" on Linux.
[[nodiscard]] std::filesystem::path program_path();

// The path to start as another process of this very program. On Linux it is the same program even if its file was replaced.
[[nodiscard]] std::string same_program();

}  // namespace uma
