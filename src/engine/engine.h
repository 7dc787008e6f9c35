// The engine as the doors see it: core::Service on router, preparer, catalog and lanes, each on a thread of its own
// (docs/threads.md). Life: construct, start(), serve, drain(), stop(). Destroying it stops it.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "capability/text_embedding.h"
#include "core/limits.h"
#include "core/service.h"
#include "engine/embed_lane.h"
#include "engine/lane.h"
#include "engine/preparer.h"
#include "engine/router/router.h"
#include "engine/vision.h"
#include "engine/worker_source.h"
#include "kv/catalog.h"
#include "kv/cold_store.h"
#include "kv/state_store.h"

namespace uma::engine {

struct EngineOptions {
  Limits limits;
  std::int32_t threads = 1;  // compute threads of all workers together
  double tick_ms = 30;
  double target_ttft_ms = 0;  // 0: none
  double target_tbt_ms = 0;   // 0: automatic
  sched::PolicyOptions policy;
  double bmt_budget_gbps = 0;         // 10^9 bytes a second that may be moved; 0: no limit
  bool is_reproducible = false;       // LaneOptions
  std::int32_t verify_every = 0;      // LaneOptions; the contexts of the workers need a spare sequence
  bool speculates = false;            // guesses tokens from a sequence's own text where that pays
  kv::StoreOptions store;             // of states that no context holds
  VisionOptions vision;               // of models that have a projector
  std::size_t queue_depth_warn = 50;  // embedding requests that wait for a model; more are worth a line in the log; 0: never
  CrashRecord crashes;                // before this process; for who reads the metrics
  std::string preload;                // a model that is loaded at the start; empty: the default one
  // Called once, when that model is ready or could not be loaded.
  std::function<void(const Expected<ModelInfo>&)> on_loaded;
};

class ImageFetcher;

class Engine final : public Service, private WorkerHost {
 public:
  // `cold`: where states go that memory has no room for, and all at the end; null: they are given up. `clock` outlives the
  // engine.
  Engine(EngineOptions options, std::unique_ptr<WorkerSource> source, std::unique_ptr<kv::Catalog> catalog,
         std::unique_ptr<kv::ColdStore> cold, const Clock& clock);
  ~Engine() override;

  // Starts the threads and the load of the first model; returns at once. Requests are accepted from now on.
  void start();
  // From now on new generations are refused; those that run go on.
  void drain();
  // No request is open.
  [[nodiscard]] bool is_idle() const { return router_.requests_open() == 0; }
  // Ends what runs as cancelled, then the threads. Every request has had its terminal event when it returns.
  void stop();

  RequestShare open_share(TenantId tenant) override { return memory_->open(std::move(tenant)); }
  RequestId generate(TenantId tenant, GenerateRequest request, std::vector<std::shared_ptr<EventSink>> sinks) override;
  RequestId embed(TenantId tenant, EmbedRequest request, Reply<EmbedResult> reply) override;
  RequestId rerank(TenantId tenant, RerankRequest request, Reply<RerankResult> reply) override;
  void cancel(RequestId id, Reply<bool> reply) override;
  void cancel_session(TenantId tenant, std::string session, Reply<bool> reply) override;
  void create_session(TenantId tenant, CreateSessionRequest request, Reply<SessionInfo> reply) override;
  void append_input(TenantId tenant, AppendRequest request, Reply<SessionInfo> reply) override;
  void end_session(TenantId tenant, std::string session, Reply<Unit> reply) override;
  void fork_session(TenantId tenant, std::string session, std::string name, Reply<SessionInfo> reply) override;
  void rewind_session(TenantId tenant, std::string session, std::int32_t turn, Reply<SessionInfo> reply) override;
  void touch_session(TenantId tenant, std::string session, Reply<SessionInfo> reply) override;
  void get_session(TenantId tenant, std::string session, Reply<SessionDetail> reply) override;
  void list_sessions(TenantId tenant, SessionListRequest request, Reply<SessionList> reply) override;
  void set_metadata(TenantId tenant, std::string session, std::string metadata, Reply<SessionDetail> reply) override;
  void remove_last_message(TenantId tenant, std::string session, MessagePosition place, Reply<SessionDetail> reply) override;
  void get_response(TenantId tenant, std::string session, std::string response, Reply<ResponseDetail> reply) override;
  void cancel_response(TenantId tenant, std::string session, std::string response, Reply<ResponseDetail> reply) override;
  void forget_response(TenantId tenant, std::string session, std::string response, Reply<Unit> reply) override;
  void export_session(TenantId tenant, std::string session, bool with_kv, Reply<ExportedSession> reply) override;
  void import_session(TenantId tenant, ImportRequest request, Reply<ImportedSession> reply) override;
  void embed_images(TenantId tenant, EmbedImagesRequest request, Reply<ImageEmbeddings> reply) override;
  void read_images(std::vector<std::string> ids, std::size_t bytes_max, Reply<std::vector<Bytes>> reply) override;
  void load_model(std::string model, Reply<Unit> reply) override;
  void unload_model(std::string model, Reply<Unit> reply) override;
  [[nodiscard]] Expected<std::string> resolve_model(const std::string& name) const override { return source_->resolve(name); }
  [[nodiscard]] std::vector<ModelInfo> models() const override;
  [[nodiscard]] MetricsSnapshot metrics() const override;

 private:
  // A lane, with or without one for prompts beside it, and their threads.
  struct Worker {
    std::shared_ptr<void> reservation;  // of its memory, by the source, where the worker came later than the model
    std::unique_ptr<Lane> lane;
    std::vector<std::thread> threads;
  };
  struct EmbedWorker {
    std::shared_ptr<void> reservation;  // likewise
    std::unique_ptr<EmbedLane> lane;
    std::thread thread;
  };
  // A model that was asked for. Its counters go on when it is loaded again.
  struct Loaded {
    ModelInfo info;
    std::shared_ptr<VisionStats> vision_stats = std::make_shared<VisionStats>();
    std::vector<std::shared_ptr<LaneStats>> stats;         // of each worker there ever was; shared with its lane
    std::vector<std::shared_ptr<EmbedStats>> embed_stats;  // likewise
    // Freed from the last one on.
    std::shared_ptr<void> reservation;        // of the memory of what follows, by the source
    std::shared_ptr<const llm::Model> model;  // null: not loaded
    std::shared_ptr<Vision> vision;           // shared with its thread and the router; null: it reads no images
    std::thread vision_thread;
    std::vector<Worker> workers;
    std::vector<EmbedWorker> embed_workers;  // instead

    void count_workers() { info.workers = static_cast<std::int32_t>(workers.size() + embed_workers.size()); }
  };

  void on_load_progress(const std::string& model, double progress) override;
  void on_loaded(const std::string& model, Expected<LoadedWorkers> loaded) override;
  void add_workers(const std::string& model, LoadedWorkers more) override;
  [[nodiscard]] bool keep_workers(const std::string& model, std::size_t count) override;
  void on_load_queued(const std::string& model, std::uint64_t bytes) override;
  [[nodiscard]] StoredStates stored() override {
    // Beside states there are files that clients send and read.
    return {.bytes = std::max(store_.memory_bytes(), bytes_held()), .bytes_max = options_.store.warm_bytes_max};
  }
  void limit_stored(kv::MemoryLimit limit) override { store_.limit_memory(limit); }
  [[nodiscard]] bool retire(const std::string& model) override;
  void hold_background(const std::string& model, bool holds) override;
  [[nodiscard]] std::vector<ModelUsage> usage() override;
  [[nodiscard]] std::shared_ptr<Vision> make_vision(const std::string& name, std::unique_ptr<llm::Projector> projector);
  [[nodiscard]] std::vector<Lane*> make_workers(const std::string& name, LoadedWorkers made);
  [[nodiscard]] std::vector<EmbedLane*> make_embed_workers(const std::string& name, LoadedWorkers made,
                                                           const std::shared_ptr<const capability::TextEmbedder>& embedder);
  [[nodiscard]] std::vector<Lane*> add_lanes(Loaded& loaded, LoadedWorkers& made) REQUIRES_LOCK(models_mutex_);
  [[nodiscard]] std::vector<EmbedLane*> add_embed_lanes(Loaded& loaded, LoadedWorkers& made) REQUIRES_LOCK(models_mutex_);
  [[nodiscard]] Expected<RequestShare> hold(const TenantId& tenant, std::size_t bytes);
  template <class T, class RequestT>
  [[nodiscard]] std::optional<RequestShare> hold_or_refuse(const TenantId& tenant, const RequestT& request, Reply<T>& reply);
  template <class T, class RequestT>
  [[nodiscard]] std::optional<Reply<T>> holding(const TenantId& tenant, const RequestT& request, Reply<T> reply);
  template <class T>
  void answer(Reply<T> reply, Task<Expected<T>> task);
  static void close_workers(const std::vector<Worker*>& workers, const std::vector<EmbedWorker*>& embed_workers);
  [[nodiscard]] bool has_streams() const;
  template <class Condition>
  void wait_for_disk(const Condition& is_done) const;
  template <class T>
  [[nodiscard]] T ask_router(std::move_only_function<T()> question);
  [[nodiscard]] kv::StoreOptions with_engine(kv::StoreOptions options) const;
  void run_store(const std::unordered_set<SessionId>& sessions);
  static void run_vision(Vision& vision);
  static void run_lane(Lane& lane, std::size_t index);
  static void run_prefill_lane(PrefillLane& lane, std::size_t index);
  static void run_embed_lane(EmbedLane& lane, std::size_t index);

  // Constant after construction.
  const EngineOptions options_;
  const Clock& clock_;
  const TimePoint started_at_;
  const std::unique_ptr<WorkerSource> source_;
  const std::unique_ptr<kv::Catalog> catalog_;

  const std::shared_ptr<BusyWorkers> busy_workers_ = std::make_shared<BusyWorkers>(options_.threads);  // shared by all lanes

  kv::StateStore store_;
  const std::unique_ptr<ImageFetcher> fetcher_;  // null: no URL may be asked for
  const std::shared_ptr<TenantBudget> memory_;   // shared with the doors and their requests
  Preparer preparer_;
  Router router_;
  std::atomic<std::uint64_t> last_request_{0};
  std::promise<void> store_opened_;
  const std::shared_future<void> store_is_open_{store_opened_.get_future()};
  bool started_ = false;  // owned by the thread that calls start() and stop()
  std::thread router_thread_;
  std::vector<std::thread> preparer_threads_;
  std::thread store_thread_;
  std::thread catalog_thread_;

  mutable Mutex models_mutex_;
  std::map<std::string, Loaded> models_ GUARDED_BY(models_mutex_);  // by name
};

}  // namespace uma::engine
