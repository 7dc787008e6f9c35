// Loads models on demand within the available memory. Every load runs on its own thread. A load that does not fit evicts others
// according to plan_evictions(), and waits if that does not help yet. A maintenance pass every few seconds handles memory taken
// by other programs, and idle models.
//
// Thread rule: the engine's router calls load(), unload() and cancel_load(), which never block; the pool's own threads may wait
// for the router. Therefore no lock that these three functions take is held while the host is called.
//
// The class is large because loading, evicting and growing change the same residents under the same two locks; what needs no
// lock is elsewhere: plan_evictions(), MemoryNeed, BackgroundHolds, WarmMemory.
#pragma once

#include <atomic>
#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "base/system/memory_info.h"
#include "engine/model/load_workers.h"
#include "engine/model/model_loader.h"
#include "pool/background_holds.h"
#include "pool/device_fit.h"
#include "pool/load_guard.h"
#include "pool/memory_governor.h"
#include "pool/memory_need.h"
#include "pool/model_registry.h"
#include "pool/unknown_model.h"
#include "pool/warm_memory.h"

namespace uma::pool {

struct PoolOptions {
  std::string default_model;         // Model of requests that name none; empty: the first registered one.
  llm::Encoders default_encoders{};  // Encoders of the projector that `prepare` adds, which the registry does not know.
  std::vector<std::string> shipped_models{};  // Names of the registered models that ship with umad.
  UnknownModel unknown = UnknownModel::automatic;
  std::string own_folder;  // Folder whose models remove() may delete; empty: none.
  GovernorOptions governor;
  Duration maintenance = std::chrono::seconds(10);
  Duration min_loaded = std::chrono::seconds(15);  // See EvictionOptions.
  std::int32_t cores = 1;                          // Cores of the machine: no worker is added when as many are in use.
  Duration idle_unload{0};                         // A model that was unused for this time is unloaded; 0: never.
  std::int64_t queue_depth_warn = 50;              // The log warns when one model has more waiting requests.
  std::uint64_t image_cache_bytes_max = 0;         // Limit of the encoded images that a model with a projector may cache.
  // Returns the options to load a model with. Called on the loading thread.
  std::function<Expected<engine::LoadWorkersOptions>(const RegisteredModel& model)> prepare;
  LoadGuard* guard = nullptr;  // Outlives the pool; null: every file is loaded.
  std::function<MemoryInfo()> memory = [] { return read_memory_info(); };
};

class ModelPool final : public engine::ModelLoader {
 public:
  ModelPool(PoolOptions options, std::shared_ptr<const ModelRegistry> registry, const Clock& clock);
  ~ModelPool() override;

  [[nodiscard]] Expected<std::string> resolve(const std::string& name) const override;
  [[nodiscard]] Expected<std::string> choose(const std::string& name, Capability capability) const override;
  [[nodiscard]] std::vector<ModelInfo> list() const override;
  void add_metrics(MetricsSnapshot& snapshot) const override;
  void start(engine::LoaderDelegate& host) override;
  void load(const std::string& model) override;
  void unload(const std::string& model, Promise<Unit> reply) override;
  void cancel_load(const std::string& model) override;
  void report_backlog(const std::string& model) override;
  void report_lost(const std::string& model) override;
  void stop() override;

  // Deletes the files of a model in own_folder, after unloading it. Does not block. Errors: E_MODEL_001; E_SESSION_002 if it is
  // in use; E_MODEL_003 if its file lies elsewhere; E_IO_001.
  void remove(const std::string& model, Promise<Unit> reply);
  // Notices files that have been added to the folders or removed. A few system calls if nothing has changed.
  void look_at_folders() const;
  // Looks at all files again, but not at models.yaml.
  void rescan();
  // The model with this file, as its name. Notices a new file. Errors: E_MODEL_002 if no model has it, or if it is invalid.
  [[nodiscard]] Expected<std::string> name_of_file(const std::string& path) const;

  // Reads the registry again; loaded models are unaffected. Any thread; reads files. Errors: every mistake in models.yaml; the
  // registry is unchanged then.
  [[nodiscard]] std::expected<std::size_t, std::vector<std::string>> reload();
  [[nodiscard]] const MemoryGovernor& governor() const { return governor_; }
  // The present snapshot. Any thread.
  [[nodiscard]] std::shared_ptr<const ModelRegistry> registry() const;

 private:
  struct Load {
    std::uint64_t number = 0;  // Order of arrival.
    std::atomic<bool> is_cancelled{false};
    bool is_waiting = false;          // Waiting for memory; guarded by mutex_.
    bool is_refused = false;          // It can never fit; used by the load's thread.
    bool is_short_on_device = false;  // A device has less memory than before; used by the load's thread.
    std::jthread thread;              // Declared last, because it uses the other members.
  };
  // The memory of a model.
  struct Resident {
    Holding weights_held;  // Declared before `weights`, so that it is released after them.
    // Kept also while there are no contexts; null during a load, and if the weights belong to workers.
    std::shared_ptr<const llm::Model> weights;
    std::shared_ptr<const ModelFile> file;     // The file that they were loaded from.
    std::vector<llm::AdapterSource> adapters;  // The adapters that the card had then.
    llm::DeviceOptions devices;                // Where its layers are.
    std::uint64_t context_bytes = 0;           // Contexts of all workers.
    llm::DeviceBytes contexts_on_devices;      // Part of context_bytes.
    std::uint64_t further_bytes = 0;           // Part of context_bytes for workers that were added later.
    llm::DeviceBytes further_on_devices;       // Part of further_bytes.
    std::uint64_t state_bytes = 0;             // Memory per worker for states in transfer.
    TimePoint loaded_at{};
    double load_ms = 0;
    llm::ContextOptions context;     // The layout that further workers get, too.
    std::int32_t workers = 0;        // Workers that the engine has.
    std::int32_t workers_first = 0;  // Workers of the load.
    bool is_loading = false;         // The model, or another worker, is being loaded.
    bool is_serving = false;         // The engine has its workers.

    // Whether it can be used for the model as its files and its card are now.
    [[nodiscard]] bool serves(const RegisteredModel& model) const {
      return file == model.file && adapters == model.adapters && !(weights && weights->is_lost());
    }
  };
  struct UnloadRequest {
    std::string model;
    bool deletes_files = false;  // Afterwards.
    Promise<Unit> reply;
  };
  // The memory of a load.
  struct Reserved {
    Holding contexts;  // The resident has that of the weights.
    MemoryNeed need;
    MemoryNeed wanted;  // The need with all that the load can do without.
  };
  struct LoadWait;
  // The result of make_room_on_devices(). some: it has to be asked again. none: the load does not fit there.
  enum class RoomMade : std::uint8_t { not_needed, some, none };

  [[nodiscard]] std::vector<const RegisteredModel*> able_models(const ModelRegistry& models, Capability capability) const;
  [[nodiscard]] const RegisteredModel& default_among(std::span<const RegisteredModel* const> able) const;
  [[nodiscard]] Expected<engine::LoadedWorkers> load_now(const std::string& model, Load& load);
  [[nodiscard]] LoadControl control_of(const Load& load) const;
  void refuse_adapters(engine::LoadWorkersOptions& options, const LoadControl& control) const;
  void choose_layout(const RegisteredModel& model, engine::LoadWorkersOptions& options);
  [[nodiscard]] Expected<MemoryNeed> need_of(const RegisteredModel& model, const engine::LoadWorkersOptions& options) const;
  [[nodiscard]] MemoryNeed correct(const RegisteredModel& model, const MemoryNeed& need, const engine::LoadedWorkers& loaded,
                                   Holding& contexts);
  [[nodiscard]] Expected<Reserved> reserve(const RegisteredModel& model, engine::LoadWorkersOptions& options,
                                           const llm::DeviceOptions& wanted, double share, Load& load);
  [[nodiscard]] Expected<MemoryNeed> place(const RegisteredModel& model, engine::LoadWorkersOptions& options,
                                           const llm::DeviceOptions& wanted, double share);
  [[nodiscard]] Expected<MemoryNeed> place_whole(const RegisteredModel& model, engine::LoadWorkersOptions& options,
                                                 std::span<const llm::Device> devices, const llm::DeviceOptions& wanted,
                                                 double share);
  [[nodiscard]] std::vector<RoomOnDevice> rooms_for(const RegisteredModel& model, std::span<const llm::Device> devices,
                                                    double share, bool evicts);
  [[nodiscard]] RoomMade make_room_on_devices(const std::string& model, const MemoryNeed& need, bool has_weights,
                                              std::span<const engine::ModelUsage> usages);
  [[nodiscard]] Expected<Holding> acquire(const RegisteredModel& model, MemoryNeed& need,
                                          std::shared_ptr<const llm::Model>& weights, const llm::DeviceOptions& devices,
                                          Load& load);
  [[nodiscard]] Expected<std::optional<Holding>> try_acquire(const RegisteredModel& model, MemoryNeed& need,
                                                             std::shared_ptr<const llm::Model>& weights,
                                                             const llm::DeviceOptions& devices, Load& load, LoadWait& wait);
  [[nodiscard]] Expected<Unit> look_for_kept_weights(const RegisteredModel& model, std::shared_ptr<const llm::Model>& weights,
                                                     Load& load, LoadWait& wait);
  [[nodiscard]] std::optional<Holding> begin_load(const RegisteredModel& model, const MemoryNeed& need, bool has_weights,
                                                  const llm::DeviceOptions& devices, Load& load);
  [[nodiscard]] Error refuse(const std::string& model, std::uint64_t bytes, Load& load);
  void drop_failed_load(const std::string& model, Holding contexts);
  [[nodiscard]] Resident take_resident(const std::string& model);
  [[nodiscard]] std::vector<ModelView> views(const std::string& asking, std::span<const engine::ModelUsage> usages,
                                             Place place = kHostMemory) const;
  [[nodiscard]] bool take(const EvictionStep& step);
  [[nodiscard]] bool unload_now(const std::string& model, bool keeps_weights);
  void unload_lost(const std::string& model);
  [[nodiscard]] Expected<Unit> unload_as_asked(const UnloadRequest& request);
  [[nodiscard]] Expected<Unit> delete_files(const RegisteredModel& model);
  void grow(const std::string& model);
  void add_worker(const std::string& model, const engine::LoadWorkersOptions& options, Holding held, Load& load);
  void shrink(const engine::ModelUsage& usage);
  void run_maintenance();
  void maintain();
  void keep_warm(const std::string& model);
  void update_governor();
  [[nodiscard]] std::uint64_t under_way_bytes() const;

  const PoolOptions options_;
  const Clock& clock_;
  MemoryGovernor governor_;
  WarmMemory warm_;  // Used under eviction_mutex_.
  MeasuredNeeds measured_;
  BackgroundHolds holds_;
  engine::LoaderDelegate* host_ = nullptr;

  Mutex eviction_mutex_;         // Held while memory is freed for a claim; locked before mutex_.
  mutable Mutex reading_mutex_;  // Held while the next registry is read, so that none is lost; locked before mutex_.
  mutable Mutex mutex_;
  CondVar changed_;
  std::uint64_t changes_ GUARDED_BY(mutex_) = 0;
  mutable std::shared_ptr<const ModelRegistry> registry_ GUARDED_BY(mutex_);
  mutable TimePoint invalid_seen_at_ GUARDED_BY(mutex_){};                 // When invalid files were looked at last.
  std::map<std::string, std::unique_ptr<Load>> loads_ GUARDED_BY(mutex_);  // The last load of each model.
  std::uint64_t last_load_ GUARDED_BY(mutex_) = 0;
  std::map<std::string, Resident> residents_ GUARDED_BY(mutex_);
  std::vector<UnloadRequest> unloads_ GUARDED_BY(mutex_);
  std::set<std::string> lost_ GUARDED_BY(mutex_);               // Models that have lost a device and are still loaded.
  std::map<std::string, TimePoint> queues_ GUARDED_BY(mutex_);  // Models with waiting requests, and since when.
  std::thread maintenance_;
  Counter loads_total_;
  Counter unloads_total_;
  bool is_stopped_ GUARDED_BY(mutex_) = false;
};

}  // namespace uma::pool
