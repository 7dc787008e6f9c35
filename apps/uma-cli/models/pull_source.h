// Parses the source that `uma-cli pull` was given, and chooses the file name for it. Pure.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "uma-cli/models/url.h"
#include "uma-cli/result.h"

namespace uma::cli {

// owner/repo[:FILE-OR-QUANT][@REVISION]
struct HubName {
  std::string repo;
  std::string pick;  // A file name or a quant; empty: the hub's only model, else q4_k_m.
  std::string revision = "main";
};

using Source = std::variant<Url, HubName>;
[[nodiscard]] Result<Source> parse_source(const std::string& text);

// The local file name for a file from `path`: its last component, percent-decoded for a URL. Fails for a name that begins with
// a dot, leaves its folder, contains control characters or does not end in .gguf.
[[nodiscard]] Result<std::string> file_name_of_url(const Url& url);
[[nodiscard]] Result<std::string> safe_file_name(std::string_view path);

// The URL of each file of the model of which `url` is a file: of all its pieces, if its name is that of one.
[[nodiscard]] Result<std::vector<Url>> urls_of_model(const Url& url);

// The name under which the projector `file` goes with the model `model`, which both are names of files: its own, unless the
// registry would not pair them (uma::pairing_name).
[[nodiscard]] std::string projector_name(std::string_view file, std::string_view model);

// $XDG_DATA_HOME/uma/models, else ~/.local/share/uma/models. Empty if the environment names no home folder.
[[nodiscard]] std::string models_folder(std::string_view data_home, std::string_view home);

// 64 hexadecimal digits in lower case, or a usage failure.
[[nodiscard]] Result<std::string> parse_sha256(std::string_view text);

// Quotes `text` as one word for a shell.
[[nodiscard]] std::string shell_word(std::string_view text);

}  // namespace uma::cli
