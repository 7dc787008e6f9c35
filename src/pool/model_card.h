// What is known of a model before it is loaded.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/capability.h"
#include "llm/model.h"

namespace uma::pool {

[[nodiscard]] std::optional<Capability> parse_capability(std::string_view name);

// What models.yaml says of one model; one that is only a file in a folder has a card that says nothing but its name and path.
// Left out, a value is the daemon's own.
struct ModelCard {
  std::string name;
  std::string path;  // as written: in the folder of models.yaml, or, a plain name, in one of the models' folders
  std::string url;   // where it is fetched from; without a path, the file has the last part of its name
  std::optional<Capability> capability;  // the file's own
  std::vector<std::string> aliases;
  std::optional<std::int32_t> context_cells;
  std::optional<std::int32_t> slots;
  std::optional<llm::KvType> kv_type;
  bool is_pinned = false;     // never unloaded, once loaded
  bool is_preloaded = false;  // loaded at the start
  std::int32_t workers_max = 1;
  bool replicates_weights = false;
  double weight = 1;  // of two idle models the one of less weight is unloaded first
  std::string draft_model;
  std::string projector;
  std::map<std::string, std::string> tasks;   // what an embedding's text begins with, by task
  std::optional<std::int64_t> idle_unload_s;  // unloaded after so long without a request; 0: never
};

// Whether it can be a model's name or alias: 1 to 128 bytes of UTF-8 without blanks and control characters.
[[nodiscard]] bool is_model_name(std::string_view name);

}  // namespace uma::pool
