// Decides whether the library may read a model's files, and records each load. Its knowledge survives a crash of the process.
#pragma once

#include <functional>

#include "core/error.h"
#include "engine/model/load_workers.h"

namespace uma::pool {

// Called by loading threads, several at a time.
class LoadGuard {
 public:
  virtual ~LoadGuard() = default;
  // Blocks while new files are tried; gives up when is_cancelled() returns true. Errors: E_MODEL_002 with the reason, but
  // without paths, because clients read it.
  [[nodiscard]] virtual Expected<Unit> check(const engine::LoadWorkersOptions& options,
                                             const std::function<bool()>& is_cancelled) = 0;
  // The same for an adapter of the model.
  [[nodiscard]] virtual Expected<Unit> check_adapter(const engine::LoadWorkersOptions& options,
                                                     const llm::AdapterSource& adapter,
                                                     const std::function<bool()>& is_cancelled) = 0;
  // The library reads the files between begin() and end(). A process that crashes in between never calls end().
  virtual void begin(const engine::LoadWorkersOptions& options) = 0;
  // `is_loaded` is true after a whole load, successful or not, and false after reading only the beginning, as for measuring
  // memory.
  virtual void end(const engine::LoadWorkersOptions& options, bool is_loaded) = 0;
};

}  // namespace uma::pool
