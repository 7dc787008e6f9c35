// Reads a hub's file listing and chooses the file that a name means. Pure; pull.cpp makes the requests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "uma-cli/models/pull_source.h"
#include "uma-cli/result.h"

namespace uma::cli {

struct HubFile {
  std::string path;  // Path within the repository.
  std::optional<std::uint64_t> size;
  std::string sha256;  // Empty if the hub lists none.
};

[[nodiscard]] std::string listing_url(std::string_view endpoint, const HubName& name);
[[nodiscard]] std::string file_url(std::string_view endpoint, const HubName& name, std::string_view path);

// Parses one page of /api/models/REPO/tree/REVISION. The Link header names the next page and is empty after the last.
[[nodiscard]] Result<std::vector<HubFile>> parse_listing(std::string_view json);
[[nodiscard]] std::string next_page(std::string_view link_header);

// A model of a repository.
struct HubModel {
  std::vector<HubFile> files;          // One, or all pieces of a split model in their order.
  std::optional<HubFile> projector{};  // Encodes images or sound for it.
};

// Chooses the model that `name` means: that of the exact file name, else the only one in GGUF whose name contains the quant as
// a word in either case. Without either: the only one in GGUF, else that of q4_k_m. Fails with a list of choices if several
// models or none match, and if a piece is missing. Projectors and importance matrices are models only by their exact names.
[[nodiscard]] Result<HubModel> choose_model(const std::vector<HubFile>& files, const HubName& name);

}  // namespace uma::cli
