// Which file a model's name means, and which model is served when none is named.
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

// The file that `name` means: itself where it is a path of a file; a plain name, with or without .gguf, is looked for in
// `folders` in their order. Errors: E_MODEL_001 that says where was looked, and what is there.
[[nodiscard]] Expected<std::string> find_model(std::string_view name, const std::vector<std::filesystem::path>& folders);

}  // namespace uma::umad
