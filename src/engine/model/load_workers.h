// Loads a model from its file and makes the contexts of its workers.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/capability.h"
#include "core/error.h"
#include "core/model_defaults.h"
#include "engine/model/model_loader.h"
#include "llm/adapters.h"
#include "llm/device/devices.h"
#include "llm/model.h"
#include "llm/picture/picture_model.h"

namespace uma::engine {

struct LoadWorkersOptions {
  std::string path;  // A GGUF file; of one that draws also safetensors.
  Capability capability = Capability::chat;
  std::string draft_path;        // A draft model, whose weights all workers share; empty: none.
  std::string projector_path{};  // A projector, which encodes images; empty: none.
  std::vector<llm::AdapterSource> adapters{};
  llm::PictureSource picture{};       // Source of a model that draws.
  std::int32_t image_tokens_max = 0;  // See llm::ProjectorOptions.
  // Weights that are loaded already; null: they are read, as with `replicates`.
  std::shared_ptr<const llm::Model> weights = nullptr;
  std::map<std::string, std::string> tasks{};  // See LoadedWorkers.
  ModelDefaults defaults{};                    // See LoadedWorkers.
  std::int32_t workers = 1;
  llm::ContextOptions context;  // For each worker.
  llm::DeviceOptions devices{};
  std::int32_t threads = 1;  // See LoadedWorkers.
  bool replicates = false;   // Every worker has its own copy of the weights.
  bool lanes = false;        // Each worker gets a second context for prompts, if the model's state can be handed over.
  std::int32_t threads_beside_prefill = 0;  // See LoadedWorkers.
  std::shared_ptr<KeptWidths> widths{};     // See LoadedWorkers.
};

// The cells of a sequence in the context that computes long prompts, at first. Most prompts are shorter; 2,048 cells of an 8 B
// model take 256 MiB.
inline constexpr std::int32_t kPrefillCellsFirst = 2048;

// The options of the context that computes long prompts for a context with these options, whose layout is chosen
// (ContextOptions::sequence_cells is not 0), with at most `cells_max` cells: it is made anew for longer prompts.
[[nodiscard]] llm::ContextOptions prefill_context_options(llm::ContextOptions options, std::int32_t sequences = 1,
                                                          std::int32_t cells_max = kPrefillCellsFirst);

// The devices of a draft model whose model has these: all its layers are on the first one, or on all if they are not named.
[[nodiscard]] llm::DeviceOptions draft_devices(llm::DeviceOptions devices);

// Whether a worker gets a second context for long prompts. On a device, two contexts would only take turns.
[[nodiscard]] inline bool wants_prefill_context(const LoadWorkersOptions& options) {
  return options.lanes && options.context.sequences > 1 && !options.devices.are_named();
}

// Options of the one context of a model that draws: four guided pictures a call.
[[nodiscard]] llm::PictureContextOptions picture_options(const LoadWorkersOptions& options);

// Blocks. `on_progress` is called with values from 0 to 1; it returns false to end the load early, which is then an error.
[[nodiscard]] Expected<LoadedWorkers> load_workers(const LoadWorkersOptions& options,
                                                   const std::function<bool(double)>& on_progress);

}  // namespace uma::engine
