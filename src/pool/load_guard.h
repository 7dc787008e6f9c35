// Decides whether the files of a model may be given to the library at all, and learns when they are. What it knows outlives the
// process, which the library may end.
#pragma once

#include <functional>

#include "core/error.h"
#include "engine/load_workers.h"

namespace uma::pool {

// Called by the threads that load, several at a time.
class LoadGuard {
 public:
  virtual ~LoadGuard() = default;
  // Blocks while files that were never loaded are tried; gives up when is_cancelled() says so. Errors: E_MODEL_002 with the
  // reason, and no path: whoever asked for the model reads it.
  [[nodiscard]] virtual Expected<Unit> check(const engine::LoadWorkersOptions& options,
                                             const std::function<bool()>& is_cancelled) = 0;
  // Between the two the library reads the files. A process that ends meanwhile has not reached end().
  virtual void begin(const engine::LoadWorkersOptions& options) = 0;
  // `is_loaded`: the whole load came to its end, well or not; else only its beginning, such as the measuring of what it takes.
  virtual void end(const engine::LoadWorkersOptions& options, bool is_loaded) = 0;
};

}  // namespace uma::pool
