// What `uma-cli pull` was asked for, and where it goes on the disk. Pure.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "uma-cli/result.h"
#include "uma-cli/url.h"

namespace uma::cli {

// owner/repo[:FILE-OR-QUANT][@REVISION]
struct HubName {
  std::string repo;
  std::string pick;  // empty: the hub's only model, or q4_k_m
  std::string revision = "main";
};

using Source = std::variant<Url, HubName>;
[[nodiscard]] Result<Source> parse_source(const std::string& text);

// The name that a file from `path` (the last component counts; of an address it is percent-decoded) may have on this disk.
// Fails for a name that hides itself, leaves its folder, holds control characters or does not end in .gguf.
[[nodiscard]] Result<std::string> file_name_of_url(const Url& url);
[[nodiscard]] Result<std::string> safe_file_name(std::string_view path);

// One of several files that only together are a model: NAME-00001-of-00003.gguf.
[[nodiscard]] bool is_split_name(std::string_view name);
[[nodiscard]] std::unexpected<Failure> refuse_split(std::string_view name);

// $XDG_DATA_HOME/uma/models, else ~/.local/share/uma/models. Empty when the environment names no home.
[[nodiscard]] std::string models_folder(std::string_view data_home, std::string_view home);

// 64 hexadecimal digits in lower case, or a usage failure.
[[nodiscard]] Result<std::string> parse_sha256(std::string_view text);

// `text` as one word of a shell.
[[nodiscard]] std::string shell_word(std::string_view text);

}  // namespace uma::cli
