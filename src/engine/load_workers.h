// Loads a model from its file and makes the contexts of its workers.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "core/error.h"
#include "engine/worker_source.h"
#include "llm/model.h"

namespace uma::engine {

struct LoadWorkersOptions {
  std::string path;                                     // of a GGUF file
  std::string draft_path;                               // of a draft model, whose weights all workers share; empty: none
  std::string projector_path{};                         // of what reads images; empty: none
  std::shared_ptr<const llm::Model> weights = nullptr;  // loaded before; null, or with replicated ones, they are read
  std::map<std::string, std::string> tasks{};           // LoadedWorkers
  std::int32_t workers = 1;
  llm::ContextOptions context;              // of each worker
  std::int32_t threads = 1;                 // LoadedWorkers
  bool replicates = false;                  // every worker computes on weights of its own, in memory of its own
  bool lanes = false;                       // a second context for prompts, where the model's state can be handed over
  std::int32_t threads_beside_prefill = 0;  // LoadedWorkers
};

// Blocks. `on_progress` hears of 0 to 1; it returns false to end the load early, which is then an error.
[[nodiscard]] Expected<LoadedWorkers> load_workers(const LoadWorkersOptions& options,
                                                   const std::function<bool(double)>& on_progress);

}  // namespace uma::engine
