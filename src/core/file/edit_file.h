// Edits small text files that people edit, too: models.yaml and the file of API keys.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "core/error.h"

namespace uma {

struct EditRules {
  std::size_t bytes_max = 16u << 20;  // Limit of the text, before and after the edit.
  bool makes_missing = true;          // A missing file counts as empty, and is made with its folder; false: it is an error.
};

// Returns the text of a regular file. Errors: E_IO_001 with the path.
[[nodiscard]] Expected<std::string> read_text_file(const std::string& path, const EditRules& rules);

// Returns the new text of the file; an error changes nothing.
using TextEdit = std::function<Expected<std::string>(const std::string& text)>;

// Replaces the file's text in one step, and keeps its mode, its owner if that is allowed, and a symbolic link to it. A reader
// sees the old or the new text, also after a power cut. Edits by this function follow one another, whichever process makes
// them. Blocks for the disk, and at most 10 s while another program holds the lock. Errors: E_IO_001 with the path, also for a
// file that is read-only; those of `edit`. After an error the file is as before, unless the folder could not be synced at last:
// then the new text is in its place, and a power cut may bring the old text back. `is_written` becomes true once the file has
// the new text; null: nobody wants to know.
[[nodiscard]] Expected<Unit> edit_file(const std::string& path, const EditRules& rules, const TextEdit& edit,
                                       bool* is_written = nullptr);

}  // namespace uma
