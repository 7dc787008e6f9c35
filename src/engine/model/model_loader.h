// The interface through which the engine gets workers. The engine does not know how models are found and loaded, or where their
// memory comes from.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/model_defaults.h"
#include "core/service.h"
#include "core/session_info.h"
#include "engine/lane/plan/kept_widths.h"
#include "kv/state_store.h"
#include "llm/model.h"
#include "llm/picture/picture_model.h"

namespace uma::engine {

// One worker's contexts.
struct WorkerContexts {
  std::unique_ptr<llm::Context> decode;
  std::unique_ptr<llm::Context> prefill;  // For long prompts; null: the worker has one lane.
  llm::MakeContext make_prefill{};        // Makes a wider `prefill`.
  std::unique_ptr<llm::Context> draft;    // For a draft model, which it keeps alive; null: there is no draft model.
};

// A model and its contexts: `workers` for a chat model, `embeddings` for a model of texts, `picture` for one that draws.
struct LoadedWorkers {
  std::shared_ptr<void> reservation = nullptr;  // The memory of the contexts; released after all members below.
  // Shared with the lanes and the router, which read it until the last of them ends. One of the two is null.
  std::shared_ptr<const llm::Model> model;
  std::shared_ptr<const llm::PictureModel> picture_model{};
  std::vector<WorkerContexts> workers;
  std::unique_ptr<llm::Projector> projector{};  // Encodes the model's images; null: the model reads no images.
  std::vector<std::unique_ptr<llm::EmbeddingContext>> embeddings;
  std::unique_ptr<llm::PictureContext> picture{};
  std::map<std::string, std::string> tasks;  // The tasks of an embedding model: the prefix of each task by its name.
  ModelDefaults defaults{};                  // For requests to a chat model.
  std::uint64_t weight_bytes = 0;            // Size of the weights, without the projector's.
  std::uint64_t context_bytes = 0;           // Size of the contexts.
  llm::DeviceBytes weights_on_devices{};     // Part of weight_bytes.
  llm::DeviceBytes contexts_on_devices{};    // Part of context_bytes.
  std::int32_t copies = 1;   // Copies of the weights in memory: one, or one for each worker, kept alive by its contexts.
  std::int32_t threads = 1;  // Compute threads of each worker.
  std::int32_t sampling_threads = 0;        // LaneOptions has the details.
  std::int32_t threads_beside_prefill = 0;  // Threads kept for streams while prompts are computed; 0: the two lanes take turns.
  std::shared_ptr<KeptWidths> widths{};     // Shared by the model's lanes (LaneOptions::widths).
};

// The use of a model, from which the source decides what to load and to retire.
struct ModelUsage {
  std::string name;
  std::int64_t uses = 0;                // leases
  std::int64_t waiting = 0;             // Requests that wait for the model.
  std::int64_t background_uses = 0;     // Number of `uses` by background requests.
  std::int64_t background_waiting = 0;  // Number of `waiting` background requests.
  std::int64_t queued = 0;              // Requests with a lease for which no worker has a free slot.
  double idle_s = 0;                    // Time since the last use.
  bool is_loaded = false;
};

// The usage of the model; zeros if it is not in the list.
[[nodiscard]] inline ModelUsage usage_of(std::span<const ModelUsage> usages, const std::string& model) {
  const auto found = std::ranges::find(usages, model, &ModelUsage::name);
  return found == usages.end() ? ModelUsage{.name = model} : *found;
}

// Memory of the states in the state store, in bytes.
struct StoredStates {
  std::uint64_t bytes = 0;      // Current size, including states that are being moved.
  std::uint64_t bytes_max = 0;  // Configured maximum, without states that are being moved.
};

// The engine as the source sees it.
class LoaderDelegate {
 public:
  virtual ~LoaderDelegate() = default;
  // Any thread. `progress` from 0 to 1.
  virtual void on_load_progress(const std::string& model, double progress) = 0;
  // Any thread. Called exactly once for each load.
  virtual void on_loaded(const std::string& model, Expected<LoadedWorkers> loaded) = 0;
  // A thread of the source. Adds workers to a loaded model, which is not retired before this returns.
  virtual void add_workers(const std::string& model, LoadedWorkers more) = 0;
  // A thread of the source. Frees all workers but the first `count`. False: the model is in use, and nothing has changed.
  [[nodiscard]] virtual bool shrink_workers(const std::string& model, std::size_t count) = 0;
  // Any thread. The load waits for `bytes` of memory; 0: it continues.
  virtual void on_load_queued(const std::string& model, std::uint64_t bytes) = 0;
  // Any thread. The memory of stored states.
  [[nodiscard]] virtual StoredStates stored() = 0;
  // Any thread. Limits the memory of stored states; the excess is written to disk soon (kv::StateStore::limit_memory).
  virtual void limit_stored(kv::MemoryLimit limit) = 0;
  // A thread of the source. Takes the model out of service and returns when its memory is free. Its states go to the state
  // store as fast as the store has memory for them. False: the model is in use, or not loaded.
  [[nodiscard]] virtual bool retire(const std::string& model) = 0;
  // Any thread. From now on background requests wait even if the model is loaded, so that it becomes free; false: they do not
  // wait any more.
  virtual void hold_background(const std::string& model, bool holds) = 0;
  // A thread of the source. The use of all models that were requested.
  [[nodiscard]] virtual std::vector<ModelUsage> usage() = 0;
  // Any thread. Whether a lane computes tokens for a client.
  [[nodiscard]] virtual bool has_streams() const = 0;
};

class ModelLoader {
 public:
  virtual ~ModelLoader() = default;
  // Any thread. The name of the model that clients mean by `name`; empty: the default model. Errors: E_MODEL_001.
  [[nodiscard]] virtual Expected<std::string> resolve(const std::string& name) const = 0;
  // Any thread. Like resolve(), but an unknown name may mean a model with this capability (docs/decisions/0050).
  [[nodiscard]] virtual Expected<std::string> choose(const std::string& name, Capability /*capability*/) const {
    return resolve(name);
  }
  // Any thread. All models that clients may name, with the details that are known without loading them.
  [[nodiscard]] virtual std::vector<ModelInfo> list() const = 0;
  // Any thread. Adds the source's numbers.
  virtual void add_metrics(MetricsSnapshot& snapshot) const = 0;
  // Called before all methods below.
  virtual void start(LoaderDelegate& host) = 0;
  // Any thread; does not block. Begins to load a model, by its own name. Requires: it is not loaded.
  virtual void load(const std::string& model) = 0;
  // Any thread; does not block. Retires a model; an error if it is in use.
  virtual void unload(const std::string& model, Promise<Unit> reply) = 0;
  // Any thread; does not block. No request waits for the load any more.
  virtual void cancel_load(const std::string& model) = 0;
  // Any thread; does not block. A device of the model is lost: retires it as soon as no request uses it.
  virtual void report_lost(const std::string& model) = 0;
  // Any thread; does not block. Every worker of the model has requests that wait for a slot.
  virtual void report_backlog(const std::string& model) = 0;
  // Cancels loads in progress. Returns when the host is not called any more.
  virtual void stop() = 0;
};

}  // namespace uma::engine
