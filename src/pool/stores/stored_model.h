// A model that another program has stored on this machine. It is used where it lies; nothing is ever written there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/model_defaults.h"
#include "pool/folder_time.h"

namespace uma::pool {

struct StoredModel {
  std::string_view store;                        // The program, for people: "Ollama", "Hugging Face", "LM Studio", "llama.cpp".
  std::vector<std::string> names{};              // The best first: those that the program uses.
  std::string path{};                            // Path of its first file.
  std::vector<std::string> projectors{};         // Files that may be its projector, the best first.
  std::string sha256{};                          // Hash of the file, in hexadecimal; empty: unknown.
  std::string settings{};                        // Equal settings have equal texts; empty: it has none.
  std::optional<std::int32_t> sequence_cells{};  // The window that the program gives it.
  ModelDefaults defaults{};
};

// The content of one or more stores.
struct StoreContents {
  std::vector<StoredModel> models{};
  std::vector<FolderTime> folders{};   // Folders that were read: entries that come or go there change the models.
  std::vector<std::string> remarks{};  // Files that are no models, each with the reason.
};

}  // namespace uma::pool
