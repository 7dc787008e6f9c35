// The settings of a model that are known before it is loaded.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/capability.h"
#include "core/model_defaults.h"
#include "llm/adapters.h"
#include "llm/device/devices.h"
#include "llm/model.h"
#include "llm/picture/picture_model.h"

namespace uma::pool {

inline constexpr std::int32_t kWorkersMax = 64;

[[nodiscard]] std::optional<Capability> parse_capability(std::string_view name);

// The card of one model in models.yaml. A model that is only a file in a folder has a card with just name and path. For a
// missing value, the daemon's setting applies.
struct ModelCard {
  std::string name;
  std::string path;  // Path as written: relative to the folder of models.yaml, or a file name in one of the model folders.
  std::string url;   // Source of the file; without a path, the file has the last part of the URL as its name.
  std::optional<Capability> capability;  // Nullopt: as the file says.
  std::vector<std::string> aliases;
  std::optional<std::int32_t> sequence_cells;
  std::optional<std::int32_t> slots;
  std::optional<llm::KvTypes> kv_types;
  std::optional<llm::RopeOptions> rope;
  std::optional<llm::DeviceNames> devices;
  std::optional<llm::DeviceLayers> gpu_layers;
  std::optional<llm::DeviceSplit> split;
  std::optional<std::string> main_device;
  bool is_pinned = false;        // Never unloaded once it is loaded.
  bool is_preloaded = false;     // Loaded at the daemon's start.
  std::int32_t workers_max = 1;  // kWorkersMax: as many as the machine's cores allow.
  bool replicates_weights = false;
  double weight = 1;  // The idle model with less weight is unloaded first.
  std::string draft_model;
  std::string projector;
  llm::PictureSource picture;                 // Source of a model that draws; the path of its decoder as written, and no other.
  std::vector<llm::AdapterSource> adapters;   // Paths as written.
  std::map<std::string, std::string> tasks;   // Prefix of an embedding's text, or its instruction, by task.
  std::optional<llm::Pooling> pooling;        // Makes it an embedding model; nullopt: as the file says.
  ModelDefaults defaults;                     // For requests that do not set these values themselves.
  std::optional<std::int64_t> idle_unload_s;  // Unloaded after this time without a request; 0: never.
};

// Whether the text may be a model's name or alias: 1 to 128 bytes of UTF-8 without blanks and control characters.
[[nodiscard]] bool is_model_name(std::string_view name);

}  // namespace uma::pool
