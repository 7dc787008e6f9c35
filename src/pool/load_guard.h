// Decides whether the library may read a model's files, and records each load. Its knowledge survives a crash of the process.
#pragma once

#include <functional>
#include <string>

#include "core/error.h"
#include "engine/model/load_workers.h"

namespace uma::pool {

// The questions that a load asks again and again while it works.
struct LoadControl {
  std::function<bool()> is_cancelled;  // Nobody waits for it any more.
  std::function<bool()> has_streams;   // Streams of this daemon are computed (load_priority.h).
};

// Called by loading threads, several at a time.
class LoadGuard {
 public:
  virtual ~LoadGuard() = default;
  // Blocks while a new file of a model is tried; gives up when the load is cancelled. `on_loadable` is called when the library
  // has read the file without harm: it may be loaded then, but not used before the file has passed. Errors: E_MODEL_002 with
  // the reason, but without paths, because clients read it.
  [[nodiscard]] virtual Expected<Unit> check_model(const std::string& path, const LoadControl& control,
                                                   const std::function<void()>& on_loadable) = 0;
  // Checks the files that are loaded with the model, and the load as a whole, as check_model() does. Requires: its model was
  // checked.
  [[nodiscard]] virtual Expected<Unit> check_load(const engine::LoadWorkersOptions& options, const LoadControl& control) = 0;
  // Checks an adapter of the model as check_model() does.
  [[nodiscard]] virtual Expected<Unit> check_adapter(const engine::LoadWorkersOptions& options,
                                                     const llm::AdapterSource& adapter, const LoadControl& control) = 0;
  // The library reads the files between begin() and end(). A process that crashes in between never calls end().
  virtual void begin(const engine::LoadWorkersOptions& options) = 0;
  // `is_loaded` is true after a whole load, successful or not, and false after reading only the beginning, as for measuring
  // memory.
  virtual void end(const engine::LoadWorkersOptions& options, bool is_loaded) = 0;
};

}  // namespace uma::pool
