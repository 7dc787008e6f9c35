// Who makes workers: the engine asks, and does not know how models are found, loaded or paid for.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/service.h"
#include "core/session_info.h"
#include "kv/state_store.h"
#include "llm/model.h"

namespace uma::engine {

// One worker's contexts.
struct WorkerContexts {
  std::unique_ptr<llm::Context> decode;
  std::unique_ptr<llm::Context> prefill;  // for long prompts; null: there is one lane only
  std::unique_ptr<llm::Context> draft;    // of a draft model, which it keeps alive; null: there is none
};

// A model and the contexts on it: workers for one of chat, embeddings for the others.
struct LoadedWorkers {
  std::shared_ptr<void> reservation = nullptr;  // of the contexts; ends after all below is freed
  std::shared_ptr<const llm::Model> model;      // shared: lanes and router read it until the last of them ends
  std::vector<WorkerContexts> workers;
  std::unique_ptr<llm::Projector> projector{};  // that reads images for it; null: there is none
  std::vector<std::unique_ptr<llm::EmbeddingContext>> embeddings;
  std::map<std::string, std::string> tasks;  // of embeddings: the prefix of each by its name
  std::uint64_t weight_bytes = 0;            // that the weights take, without the projector's
  std::uint64_t context_bytes = 0;           // that the contexts take
  std::int32_t copies = 1;                   // of the weights in memory: one, or one per worker, which its contexts keep alive
  std::int32_t threads = 1;                  // compute threads of each worker
  std::int32_t threads_beside_prefill = 0;   // of them for streams while prompts are computed; 0: lanes take turns
};

// What a source decides by.
struct ModelUsage {
  std::string name;
  std::int64_t uses = 0;                // requests and other things that need it now
  std::int64_t waiting = 0;             // that want it and do not have it
  std::int64_t background_uses = 0;     // of `uses`, those of background requests
  std::int64_t background_waiting = 0;  // of `waiting` likewise
  std::int64_t queued = 0;              // requests that its workers have no place for yet
  double idle_s = 0;                    // since the last use
  bool is_loaded = false;
};

// Memory of states that no context holds, in bytes.
struct StoredStates {
  std::uint64_t bytes = 0;      // that they take, wherever they are or go
  std::uint64_t bytes_max = 0;  // that they may ever take at rest, as configured
};

// What a source tells, and asks, the engine.
class WorkerHost {
 public:
  virtual ~WorkerHost() = default;
  // Any thread. `progress` from 0 to 1.
  virtual void on_load_progress(const std::string& model, double progress) = 0;
  // Any thread. Exactly once for each load.
  virtual void on_loaded(const std::string& model, Expected<LoadedWorkers> loaded) = 0;
  // A thread of the source's. Further workers of a model that is served, and not retired before this returns.
  virtual void add_workers(const std::string& model, LoadedWorkers more) = 0;
  // A thread of the source's. Frees all workers of the model but the first `count`, if nobody uses it; else false.
  [[nodiscard]] virtual bool keep_workers(const std::string& model, std::size_t count) = 0;
  // Any thread. The load waits until it may take so many bytes of memory; 0: it goes on.
  virtual void on_load_queued(const std::string& model, std::uint64_t bytes) = 0;
  // Any thread. Memory that stored states take.
  [[nodiscard]] virtual StoredStates stored() = 0;
  // Any thread. What they may take from now on; what is too much goes to disk, soon (kv::StateStore::limit_memory).
  virtual void limit_stored(kv::MemoryLimit limit) = 0;
  // A thread of the source's. Takes the model out of service, if nobody uses it, and returns when all of it is freed; what was
  // computed goes to the state store, as fast as that has room for it. False: it is in use, or not loaded.
  [[nodiscard]] virtual bool retire(const std::string& model) = 0;
  // Any thread. From now on background requests for a model that is loaded wait, so that it becomes free; or they do not any
  // more.
  virtual void hold_background(const std::string& model, bool holds) = 0;
  // A thread of the source's. Of the models that somebody has wanted.
  [[nodiscard]] virtual std::vector<ModelUsage> usage() = 0;
};

class WorkerSource {
 public:
  virtual ~WorkerSource() = default;
  // The name of the model that clients mean by `name`; empty: the default one. Any thread. Errors: E_MODEL_001.
  [[nodiscard]] virtual Expected<std::string> resolve(const std::string& name) const = 0;
  // All that clients may name, as far as it is known without loading it. Any thread.
  [[nodiscard]] virtual std::vector<ModelInfo> list() const = 0;
  // Its figures; any thread.
  virtual void add_metrics(MetricsSnapshot& snapshot) const = 0;
  // Before everything below.
  virtual void start(WorkerHost& host) = 0;
  // Begins to load a model by its own name, which is not loaded. Any thread; waits for nobody.
  virtual void load(const std::string& model) = 0;
  // Retires a model; an error where it is in use. Any thread; waits for nobody.
  virtual void unload(const std::string& model, Reply<Unit> reply) = 0;
  // Nobody waits for it any more. Any thread; waits for nobody.
  virtual void cancel_load(const std::string& model) = 0;
  // Every worker of the model has requests that wait for a place. Any thread; waits for nobody.
  virtual void note_queue(const std::string& model) = 0;
  // Ends what is being loaded early. Returns when the host is not called any more.
  virtual void stop() = 0;
};

}  // namespace uma::engine
