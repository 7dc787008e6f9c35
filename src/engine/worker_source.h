// Who makes workers: the engine asks, and does not know how models are found, loaded or paid for. Here one fixed model; the
// model pool is another source.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
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
  std::shared_ptr<const llm::Model> model;  // shared: lanes and router read it until the last of them ends
  std::vector<WorkerContexts> workers;
  std::vector<std::unique_ptr<llm::EmbeddingContext>> embeddings;
  std::map<std::string, std::string> tasks;  // of embeddings: the prefix of each by its name
  std::int32_t copies = 1;                   // of the weights in memory: one, or one per worker, which its contexts keep alive
};

class WorkerSource {
 public:
  using OnProgress = std::function<void(double)>;  // 0 to 1
  using OnLoaded = std::function<void(Expected<LoadedWorkers>)>;

  virtual ~WorkerSource() = default;
  // What clients call the model, known before it is loaded.
  [[nodiscard]] virtual std::string model_name() const = 0;
  // Begins the load; both callbacks may come from any thread, `on_loaded` exactly once.
  virtual void load(OnProgress on_progress, OnLoaded on_loaded) = 0;
  // Ends a load in progress early; on_loaded then reports an error. Returns when no callback runs any more.
  virtual void stop() = 0;
};

struct FixedModelOptions {
  std::string path;
  std::string draft_path;  // of a draft model, whose weights all workers share; empty: none
  std::int32_t workers = 1;
  llm::ContextOptions context;  // of each worker; threads: of each worker
  bool replicates = false;      // every worker computes on weights of its own, in memory of its own
  bool lanes = false;           // a second context for prompts, where the model's state can be handed over
};

// One GGUF file, loaded on a thread of its own ("uma-load").
class FixedModelSource final : public WorkerSource {
 public:
  explicit FixedModelSource(FixedModelOptions options);
  ~FixedModelSource() override;

  [[nodiscard]] std::string model_name() const override;
  void load(OnProgress on_progress, OnLoaded on_loaded) override;
  void stop() override;

 private:
  [[nodiscard]] Expected<LoadedWorkers> load_now(const OnProgress& on_progress);

  const FixedModelOptions options_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace uma::engine
