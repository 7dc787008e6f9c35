// models.yaml, the daemon's list of models, as text that people write too: an edit adds a block of lines at the end, or cuts
// one out, and leaves all others as they are.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "uma-cli/result.h"

namespace uma::cli {

struct NewModel {
  std::string name;
  std::string source;  // a file, or an http(s) address
  std::vector<std::string> aliases;
};

// $XDG_CONFIG_HOME/uma/models.yaml, else ~/.config/uma/models.yaml: where umad looks too.
[[nodiscard]] Result<std::string> default_models_file();

// The text with one model more. Fails where the name or an alias is taken or cannot be one, or where the text is no list of
// models in lines of their own.
[[nodiscard]] Result<std::string> with_model(const std::string& text, const NewModel& model);
// The text without the model and the comments inside its block. Fails where it is not there.
[[nodiscard]] Result<std::string> without_model(const std::string& text, const std::string& name);

using Edit = std::function<Result<std::string>(const std::string& text)>;
// Replaces the file's text, in one step: whoever reads it meanwhile, or after a power cut, has the old or the new one. Edits of
// several programs follow one another. A file that is not there is empty, and made with its folder.
[[nodiscard]] Result<void> edit_file(const std::string& path, const Edit& edit);

}  // namespace uma::cli
