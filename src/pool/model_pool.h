// The source of workers that loads what is used, within the memory there is. Every load runs on a thread of its own; one that
// memory has no room for makes room as the ladder says, and waits where that does not help yet. A maintenance pass looks at the
// machine every few seconds: what other programs have taken since, and models that nobody used for long.
//
// Thread rule: load(), unload() and cancel_load() come from the engine's router and wait for nobody; the pool's own threads may
// wait for the router. So no lock that those three take is held while the host is asked.
#pragma once

#include <atomic>
#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/memory_info.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "engine/load_workers.h"
#include "engine/worker_source.h"
#include "pool/load_guard.h"
#include "pool/memory_governor.h"
#include "pool/model_registry.h"
#include "pool/warm_memory.h"

namespace uma::pool {

struct PoolOptions {
  std::string default_model;           // that who names none means; empty: the first one registered
  bool default_has_projector = false;  // one that `prepare` knows and the registry does not
  GovernorOptions governor;
  Duration maintenance = std::chrono::seconds(10);
  Duration min_loaded = std::chrono::seconds(15);  // LadderOptions
  std::int32_t cores = 1;                          // of the machine: with as many workers in use nobody gets another
  Duration idle_unload{0};                         // a model that nobody used for so long is unloaded; 0: never
  std::int64_t queue_depth_warn = 50;              // requests for one model, above which the log says so
  std::uint64_t image_cache_bytes_max = 0;         // of encoded images, that a model with a projector may keep
  // How a model is loaded. On the loading thread.
  std::function<Expected<engine::LoadWorkersOptions>(const RegisteredModel& model)> prepare;
  LoadGuard* guard = nullptr;  // outlives the pool; null: every file is loaded
  std::function<MemoryInfo()> memory = [] { return read_memory_info(); };
};

class ModelPool final : public engine::WorkerSource {
 public:
  ModelPool(PoolOptions options, std::shared_ptr<const ModelRegistry> registry, const Clock& clock);
  ~ModelPool() override;

  [[nodiscard]] Expected<std::string> resolve(const std::string& name) const override;
  [[nodiscard]] std::vector<ModelInfo> list() const override;
  void add_metrics(MetricsSnapshot& snapshot) const override;
  void start(engine::WorkerHost& host) override;
  void load(const std::string& model) override;
  void unload(const std::string& model, Reply<Unit> reply) override;
  void cancel_load(const std::string& model) override;
  void note_queue(const std::string& model) override;
  void stop() override;

  // Reads the registry again; models that are loaded stay as they are. Any thread; reads files. Errors: every mistake in
  // models.yaml, and the registry stays as it was.
  [[nodiscard]] std::expected<std::size_t, std::vector<std::string>> reload();
  [[nodiscard]] const MemoryGovernor& governor() const { return governor_; }

 private:
  struct Load {
    std::uint64_t number = 0;  // in the order they came
    std::atomic<bool> is_cancelled{false};
    bool is_waiting = false;  // for memory; under mutex_
    bool is_refused = false;  // it would never fit; of its thread
    std::jthread thread;      // uses the rest
  };
  // What is in memory of a model.
  struct Resident {
    Reservation weights_held;  // ends after them
    // Also while there are no contexts; null while it loads, and for weights that belong to their workers.
    std::shared_ptr<const llm::Model> weights;
    std::shared_ptr<const ModelFile> file;  // they were loaded from
    std::uint64_t context_bytes = 0;        // of all workers
    std::uint64_t further_bytes = 0;        // of them, those that came later than the model
    std::uint64_t state_bytes = 0;          // of each worker's, for states under way
    TimePoint loaded_at{};
    double load_ms = 0;
    std::int32_t workers = 0;        // with the engine
    std::int32_t workers_first = 0;  // that it was loaded with
    bool is_loading = false;         // all of it, or a further worker
    bool is_serving = false;         // its workers are with the engine
  };
  struct UnloadRequest {
    std::string model;
    Reply<Unit> reply;
  };
  // What loading takes: weights, and the contexts of all workers.
  struct Need {
    std::uint64_t workers = 1;
    std::uint64_t weights = 0;
    std::uint64_t contexts = 0;
    std::uint64_t projector = 0;  // of `weights`: what the library does not tell
    std::uint64_t states = 0;     // of `contexts`: for a state of each worker, under way from or to a context
    std::uint64_t images = 0;     // of `contexts`: for those that stay encoded
    bool operator==(const Need&) const = default;
  };
  // What a model took when it was loaded last.
  struct Measured {
    std::shared_ptr<const ModelFile> file;
    Need foretold;
    Need taken;
  };
  class Holds;

  [[nodiscard]] std::shared_ptr<const ModelRegistry> registry() const;
  [[nodiscard]] Expected<engine::LoadedWorkers> load_now(const std::string& model, Load& load);
  [[nodiscard]] Expected<Need> foretell(const engine::LoadWorkersOptions& options) const;
  [[nodiscard]] Expected<Need> need_of(const RegisteredModel& model, const engine::LoadWorkersOptions& options) const;
  [[nodiscard]] Need correct(const RegisteredModel& model, const Need& need, const engine::LoadedWorkers& loaded,
                             Reservation& contexts);
  void note_measured(const RegisteredModel& model, const Need& need, const Need& taken);
  [[nodiscard]] Expected<Reservation> acquire(const RegisteredModel& model, Need& need,
                                              std::shared_ptr<const llm::Model>& weights, Load& load);
  [[nodiscard]] Resident take_resident(const std::string& model);
  [[nodiscard]] std::vector<ModelView> views(const std::string& asking, std::span<const engine::ModelUsage> usages) const;
  void change_holds(const std::vector<std::string>& models, std::int32_t change);
  [[nodiscard]] bool take(const LadderStep& step);
  [[nodiscard]] bool unload_now(const std::string& model, bool keeps_weights);
  void grow(const std::string& model);
  void add_worker(const std::string& model, const engine::LoadWorkersOptions& options, Reservation held, Load& load);
  void shrink(const engine::ModelUsage& usage);
  void run_maintenance();
  void maintain();
  void keep_warm(const std::string& model);
  void update_governor();
  [[nodiscard]] std::uint64_t under_way_bytes() const;

  const PoolOptions options_;
  const Clock& clock_;
  MemoryGovernor governor_;
  WarmMemory warm_;  // under relief_mutex_
  engine::WorkerHost* host_ = nullptr;

  Mutex relief_mutex_;  // one makes room at a time; taken first
  mutable Mutex mutex_;
  CondVar changed_;
  std::uint64_t changes_ GUARDED_BY(mutex_) = 0;
  std::shared_ptr<const ModelRegistry> registry_ GUARDED_BY(mutex_);
  std::map<std::string, std::unique_ptr<Load>> loads_ GUARDED_BY(mutex_);  // the last one of each model
  std::uint64_t last_load_ GUARDED_BY(mutex_) = 0;
  std::map<std::string, Resident> residents_ GUARDED_BY(mutex_);
  std::map<std::string, Measured> measured_ GUARDED_BY(mutex_);
  std::vector<UnloadRequest> unloads_ GUARDED_BY(mutex_);
  std::map<std::string, std::int32_t> holds_
      GUARDED_BY(mutex_);  // models that take no new background requests: for how many loads
  std::map<std::string, TimePoint> queues_ GUARDED_BY(mutex_);  // models whose workers had requests waiting: since when
  std::thread maintenance_;
  Counter loads_total_;
  Counter unloads_total_;
  bool is_stopped_ GUARDED_BY(mutex_) = false;
};

}  // namespace uma::pool
