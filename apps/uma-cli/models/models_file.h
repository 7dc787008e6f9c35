// Edits models.yaml as text, because people edit it, too. An edit appends a block of lines or removes one, and leaves all other
// lines unchanged.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "uma-cli/result.h"

namespace uma::cli {

struct NewModel {
  std::string name;
  std::string source;  // A file or an http(s) URL.
  std::vector<std::string> aliases;
};

// $XDG_CONFIG_HOME/uma/models.yaml, else ~/.config/uma/models.yaml; umad reads the same path.
[[nodiscard]] Result<std::string> default_models_file();

// Returns the text with one more model. Fails if the name or an alias is taken or invalid, or if the text is not a list of
// models in separate blocks.
[[nodiscard]] Result<std::string> with_model(const std::string& text, const NewModel& model);
// Returns the text without the model's block and its comments. Fails if the model is missing.
[[nodiscard]] Result<std::string> without_model(const std::string& text, const std::string& name);

using Edit = std::function<Result<std::string>(const std::string& text)>;
// Edits the file with uma::edit_file(); a missing file counts as empty. Messages begin with the path.
[[nodiscard]] Result<void> edit_file(const std::string& path, const Edit& edit);

}  // namespace uma::cli
