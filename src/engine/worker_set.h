// The workers of all requested models: lanes, their threads and their counters, which continue when a model is loaded again.
// Thread rule: any thread may read; the workers of one model are made and freed by one thread at a time, which the source
// provides.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "core/activity.h"
#include "core/session_info.h"
#include "engine/engine_options.h"
#include "engine/lane/lane.h"
#include "engine/lane/run/embed_lane.h"
#include "engine/lane/run/picture_lane.h"
#include "engine/metrics_collector.h"
#include "engine/model/model_loader.h"
#include "image/image_encoder.h"
#include "kv/state_store.h"
#include "llm/text_embedding.h"

namespace uma::engine {

class WorkerSet {
 public:
  // Lanes call `on_result` and `on_lost` (LaneOptions) on their threads. All references outlive the set.
  WorkerSet(const EngineOptions& options, kv::StateStore& store, const Clock& clock,
            std::function<void(GenerationResult)> on_result, std::function<void()> on_lost)
      : options_(options), store_(store), clock_(clock), on_result_(std::move(on_result)), on_lost_(std::move(on_lost)) {}

  // --- Making and freeing.
  // Records the progress of the load, from 0 to 1, and returns the progress recorded before.
  double set_load_progress(const std::string& model, double progress);
  void set_failed(const std::string& model, const std::string& why);
  // Makes the model's image encoder and its thread. Call it before make_workers(), whose workers use it.
  [[nodiscard]] std::shared_ptr<image::ImageEncoder> make_image_encoder(const std::string& model,
                                                                        std::unique_ptr<llm::Projector> projector);
  // Makes the first workers of a loaded model and their threads.
  [[nodiscard]] std::vector<Lane*> make_workers(const std::string& model, LoadedWorkers made);
  [[nodiscard]] std::vector<EmbedLane*> make_embed_workers(const std::string& model, LoadedWorkers made,
                                                           const llm::EmbeddingShape& shape);
  // Makes the worker of a model that draws, and its thread.
  [[nodiscard]] PictureLane& make_picture_worker(const std::string& model, LoadedWorkers made);
  // Adds workers to a loaded model.
  struct Added {
    std::vector<Lane*> lanes;
    std::vector<EmbedLane*> embed_lanes;
  };
  [[nodiscard]] Added add_workers(const std::string& model, LoadedWorkers more);
  // Frees all workers but the first `count`; retire() frees everything of the model. Returns when their threads have ended and
  // their states are on disk, or the disk was too slow. Requires: no thread sends them commands any more.
  void shrink_workers(const std::string& model, std::size_t count);
  void retire(const std::string& model);
  // Ends all threads. The workers and their counters stay. Requires: no thread makes or frees workers any more.
  void stop();

  // --- Any thread.
  // Calls `then` once, when the workers that the model has now have warmed up (WarmUp) or are freed: at once, or on a thread of
  // theirs. Requires: the model is loaded; nobody else waits for that.
  void when_warm(const std::string& model, std::function<void()> then);
  // Whether the model's last load has failed.
  [[nodiscard]] bool has_failed(const std::string& model) const;
  // Whether a lane generates tokens for a client.
  [[nodiscard]] bool has_streams() const;
  // Requires: the model was requested before.
  [[nodiscard]] ModelInfo info(const std::string& model) const;
  // Fills in the details of the models that are loaded, are being loaded, or were.
  void complete(std::vector<ModelInfo>& infos) const;
  void add_metrics(MetricsCollector& collector) const;
  // Adds the workers that generate text, and their tenants.
  void add_activity(ActivitySnapshot& activity) const;

 private:
  // A lane, perhaps with a prefill lane, and their threads.
  struct Worker {
    std::shared_ptr<void> reservation;  // The source's reservation of its memory; null for workers that came with the model.
    std::unique_ptr<Lane> lane;
    std::vector<std::thread> threads;
  };
  struct EmbedWorker {
    std::shared_ptr<void> reservation;
    std::unique_ptr<EmbedLane> lane;
    std::thread thread;
  };
  struct PictureWorker {
    std::unique_ptr<PictureLane> lane;
    std::thread thread;
  };
  // A requested model.
  struct Loaded {
    ModelInfo info;
    std::shared_ptr<image::ImageEncoderStats> image_encoder_stats = std::make_shared<image::ImageEncoderStats>();
    std::vector<std::shared_ptr<LaneStats>> stats;  // One for each worker there ever was, shared with its lane.
    std::vector<std::shared_ptr<EmbedStats>> embed_stats;
    std::shared_ptr<PictureStats> picture_stats;  // Null: the model has never drawn.
    // Freed in reverse order.
    std::shared_ptr<void> reservation;        // The source's reservation of the memory of all members below.
    std::shared_ptr<const llm::Model> model;  // Null: not loaded.
    // Shared with its thread and the router; null: the model reads no images.
    std::shared_ptr<image::ImageEncoder> image_encoder;
    std::thread image_encoder_thread;
    std::size_t cold_workers = 0;   // Number of workers that have not warmed up yet.
    std::function<void()> on_warm;  // Called when all have; null: nobody waits for that.
    std::vector<Worker> workers;
    std::vector<EmbedWorker> embed_workers;  // For embedding models, in place of `workers`.
    std::shared_ptr<const llm::PictureModel> picture_model;
    std::vector<PictureWorker> picture_workers;  // At most one.

    void count_workers() {
      info.workers = static_cast<std::int32_t>(workers.size() + embed_workers.size() + picture_workers.size());
    }
  };

  [[nodiscard]] std::vector<Lane*> add_lanes(Loaded& loaded, LoadedWorkers& made) REQUIRES_LOCK(mutex_);
  [[nodiscard]] std::vector<EmbedLane*> add_embed_lanes(Loaded& loaded, LoadedWorkers& made) REQUIRES_LOCK(mutex_);
  [[nodiscard]] std::unique_ptr<Lane> make_lane(const Loaded& loaded, const LoadedWorkers& made, WorkerContexts contexts,
                                                std::size_t index);
  void note_warm(const std::string& model);
  [[nodiscard]] LaneOptions lane_options(const Loaded& loaded, const LoadedWorkers& made, std::size_t index);
  static void start_threads(Worker& worker, std::size_t index, const std::string& model);
  static void close_workers(const std::vector<Worker*>& workers, const std::vector<EmbedWorker*>& embed_workers);
  static void close_workers(const std::vector<PictureWorker*>& workers);
  void wait_for_disk(const std::function<bool()>& is_done) const;

  // Constant after construction.
  const EngineOptions& options_;
  kv::StateStore& store_;
  const Clock& clock_;
  const std::function<void(GenerationResult)> on_result_;
  const std::function<void()> on_lost_;

  const std::shared_ptr<BusyWorkers> busy_workers_ = std::make_shared<BusyWorkers>(options_.threads);  // Shared by all lanes.

  mutable Mutex mutex_;
  std::map<std::string, Loaded> models_ GUARDED_BY(mutex_);  // By name.
};

}  // namespace uma::engine
