// The source of workers that loads what is used: every load on a thread of its own, so that none waits for another.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "engine/load_workers.h"
#include "engine/worker_source.h"

namespace uma::pool {

// A model that may be loaded.
struct PooledModel {
  std::string name;
  // How; called on the loading thread.
  std::function<Expected<engine::LoadWorkersOptions>()> prepare;
};

class ModelPool final : public engine::WorkerSource {
 public:
  // The first one is the default.
  explicit ModelPool(std::vector<PooledModel> models);
  ~ModelPool() override;

  [[nodiscard]] Expected<std::string> resolve(const std::string& name) const override;
  [[nodiscard]] std::vector<ModelInfo> list() const override;
  void start(engine::WorkerHost& host) override;
  void load(const std::string& model) override;
  void unload(const std::string& model, Reply<Unit> reply) override;
  void cancel_load(const std::string& model) override;
  void stop() override;

 private:
  struct Load {
    std::thread thread;
    std::atomic<bool> is_cancelled{false};
  };

  void run(const PooledModel& model, Load& load);

  const std::vector<PooledModel> models_;
  engine::WorkerHost* host_ = nullptr;
  mutable Mutex mutex_;
  std::map<std::string, std::unique_ptr<Load>> loads_ GUARDED_BY(mutex_);  // the last one of each model
  std::vector<std::thread> unloads_ GUARDED_BY(mutex_);
  bool is_stopped_ GUARDED_BY(mutex_) = false;
};

}  // namespace uma::pool
