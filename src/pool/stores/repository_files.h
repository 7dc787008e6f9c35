// GGUF files of a repository of the hub, as several programs keep them in a folder: which are models, under which names, and
// which are their projectors.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pool/stores/stored_model.h"

namespace uma::pool {

// Adds a folder to those whose changes are noticed. Call it before the folder is read. False: there are too many.
bool note_folder(const std::string& folder, StoreContents& contents);

// The paths of the files in a folder and the folders below it, sorted; a link to a folder is followed. Adds the folders to
// `contents`. Bounded in depth and number.
[[nodiscard]] std::vector<std::string> files_below(const std::string& folder, int depth, StoreContents& contents);

// Adds the models among a repository's files. `repository`: OWNER/NAME, or empty if it is unknown. `prefix`: a beginning of the
// file names that is not part of the models' names.
void add_repository(std::string_view store, const std::string& repository, std::string_view prefix,
                    const std::vector<std::string>& files, StoreContents& contents);

// Whether the text is a SHA-256 hash in hexadecimal, as the stores write it.
[[nodiscard]] bool is_sha256(std::string_view text);

// The quantization at the end of a file's name without its ending, as it is written there: "Q4_K_M"; empty: none.
[[nodiscard]] std::string_view quantization_in(std::string_view stem);

}  // namespace uma::pool
