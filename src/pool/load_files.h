// Reads a model's files with the library, and reports them to the log and to clients.
#pragma once

#include <functional>
#include <string>

#include "engine/model/load_workers.h"
#include "pool/load_guard.h"
#include "pool/model_registry.h"

namespace uma::pool {

// Informs the guard, if there is one, while the library reads the files.
class GuardedLoad {
 public:
  // `is_whole` is true for a load, false for reading only the beginning of the files. `guard` may be null; both arguments
  // outlive the object.
  GuardedLoad(LoadGuard* guard, const engine::LoadWorkersOptions& options, bool is_whole)
      : guard_(guard), options_(options), is_whole_(is_whole) {
    if (guard_ != nullptr) guard_->begin(options_);
  }
  ~GuardedLoad() {
    if (guard_ != nullptr) guard_->end(options_, is_whole_);
  }
  GuardedLoad(const GuardedLoad&) = delete;
  GuardedLoad& operator=(const GuardedLoad&) = delete;

 private:
  LoadGuard* guard_;
  const engine::LoadWorkersOptions& options_;
  const bool is_whole_;
};

// Loads at a low priority while there are streams, so that they continue. Blocks until it is done. `on_progress` is called on
// another thread, where it may block; the load ends when it returns false.
[[nodiscard]] Expected<engine::LoadedWorkers> load_beside_streams(const engine::LoadWorkersOptions& options,
                                                                  const LoadControl& control,
                                                                  const std::function<bool(double)>& on_progress);

// Logs the loaded model.
void log_loaded(const std::string& model, const engine::LoadedWorkers& loaded, const llm::ContextOptions& context);

// The message for a client: the names of the model's files without their folders.
[[nodiscard]] std::string without_folders(std::string message, const RegisteredModel& model);

}  // namespace uma::pool
