// Finds the file of a model by its name, and what ships with the daemon.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace uma::umad {

// The model that ships with the daemon: <prefix>/share/uma-serve/models/uma-tiny.gguf beside the <prefix>/bin that holds the
// executable. The build tree has the same layout as an installation.
[[nodiscard]] std::filesystem::path shipped_model(const std::filesystem::path& executable);

// The folder of the page that ships with the daemon, in the same way: <prefix>/share/uma-serve/page.
[[nodiscard]] std::filesystem::path shipped_page(const std::filesystem::path& executable);

// The file that `name` means: the file itself if `name` is a path; a plain name, with or without .gguf, is searched in
// `folders` in order. Errors: E_MODEL_001 with the folders that were searched and the models there.
[[nodiscard]] Expected<std::string> find_model(std::string_view name, const std::vector<std::filesystem::path>& folders);

}  // namespace uma::umad
