// A hub of models: what its listing says and which file of it a name means. Pure; the asking is done by pull.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "uma-cli/pull_source.h"
#include "uma-cli/result.h"

namespace uma::cli {

struct HubFile {
  std::string path;  // within the repository, with its folders
  std::optional<std::uint64_t> size;
  std::string sha256;  // empty where the hub does not say
};

[[nodiscard]] std::string listing_url(std::string_view endpoint, const HubName& name);
[[nodiscard]] std::string file_url(std::string_view endpoint, const HubName& name, std::string_view path);

// One page of /api/models/REPO/tree/REVISION: its files. The next page is named by the Link header, empty after the last.
[[nodiscard]] Result<std::vector<HubFile>> parse_listing(std::string_view json);
[[nodiscard]] std::string next_page(std::string_view link_header);

// The file that `name` means: the exact file name, else the one .gguf with the quant as a word of its name in either case;
// without either the only .gguf, else the q4_k_m. Several or none: a failure that lists the choices. Projectors and importance
// matrices count only by their exact names; pieces of a split model never.
[[nodiscard]] Result<HubFile> choose_file(const std::vector<HubFile>& files, const HubName& name);

}  // namespace uma::cli
