// The engine as the listeners see it: core::Service, made of router, work pool, catalog and lanes, which run on threads
// of their own (docs/threads.md). Life: construct, start(), serve, drain(), stop(). The destructor stops it. It has many
// functions because it implements two interfaces, Service and LoaderDelegate; most are one line.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/move_only_function.h"
#include "core/service.h"
#include "core/work/task.h"
#include "core/work/tenant_budget.h"
#include "core/work/work_pool.h"
#include "engine/engine_options.h"
#include "engine/limited_join.h"
#include "engine/model/model_loader.h"
#include "engine/router/router.h"
#include "engine/worker_set.h"
#include "kv/catalog/catalog.h"
#include "kv/disk/cold_store.h"
#include "kv/state_store.h"

namespace uma::engine {

class Engine final : public Service, private LoaderDelegate {
 public:
  // `cold` stores the states that exceed the memory of the state store, and all states at the end; null: such states are
  // dropped. `shared` is where daemons with one catalog find each other's states; null: there is no such store. `clock`
  // outlives the engine.
  Engine(EngineOptions options, std::unique_ptr<ModelLoader> source, std::unique_ptr<kv::Catalog> catalog,
         std::unique_ptr<kv::ColdStore> cold, const Clock& clock, std::unique_ptr<kv::SharedStates> shared = nullptr);
  ~Engine() override;

  // Starts the threads and the load of the first model; returns at once. Requests are accepted from now on.
  void start();
  // From now on new generations are refused; running generations continue.
  void drain();
  // No request is in flight.
  [[nodiscard]] bool is_idle() const { return router_.requests_open() == 0; }
  // Ends all requests as cancelled, then the threads. Every request has had its terminal event when it returns. A call of the
  // shared store that does not return is left alone after a while; the destructor waits for it.
  void stop();
  // After stop(): such a call is left.
  [[nodiscard]] bool is_left_hanging() const { return is_left_hanging_; }

  RequestShare open_share(TenantId tenant) override { return memory_->open(std::move(tenant)); }
  void run_apart(TenantId tenant, std::size_t bytes, MoveOnlyFunction<void()> work) override {
    work_.post(std::move(tenant), bytes, std::move(work));
  }
  RequestId generate(TenantId tenant, GenerateRequest request, std::vector<std::shared_ptr<EventSink>> sinks) override;
  RequestId embed(TenantId tenant, EmbedRequest request, Promise<EmbedResult> reply) override;
  RequestId rerank(TenantId tenant, RerankRequest request, Promise<RerankResult> reply) override;
  RequestId draw(TenantId tenant, PictureRequest request, std::shared_ptr<PictureSink> sink,
                 Promise<PictureReceipt> reply) override;
  void count_tokens(TenantId tenant, GenerateRequest request, std::stop_token end, Promise<std::int32_t> reply) override;
  void tokenize(TenantId tenant, TokenizeRequest request, Promise<TokenizedText> reply) override;
  void detokenize(TenantId tenant, DetokenizeRequest request, Promise<ConvertedText> reply) override;
  void format_chat(TenantId tenant, GenerateRequest request, Promise<ConvertedText> reply) override;
  void cancel(RequestId id, Promise<bool> reply) override;
  void cancel_session(TenantId tenant, std::string session, Promise<bool> reply) override;
  void create_session(TenantId tenant, CreateSessionRequest request, Promise<SessionInfo> reply) override;
  void append_input(TenantId tenant, AppendRequest request, Promise<SessionInfo> reply) override;
  void end_session(TenantId tenant, std::string session, Promise<Unit> reply) override;
  void fork_session(TenantId tenant, ForkRequest request, Promise<SessionInfo> reply) override;
  void rewind_session(TenantId tenant, std::string session, std::int32_t turn, Promise<SessionInfo> reply) override;
  void touch_session(TenantId tenant, std::string session, Promise<SessionInfo> reply) override;
  void get_session(TenantId tenant, std::string session, Promise<SessionDetail> reply) override;
  void list_receipts(TenantId tenant, std::string session, Promise<std::vector<TurnReceipt>> reply) override;
  void find_receipt(TenantId tenant, std::string name, Promise<Usage> reply) override;
  void list_sessions(TenantId tenant, SessionListRequest request, Promise<SessionList> reply) override;
  void update_session(TenantId tenant, UpdateSessionRequest request, Promise<SessionInfo> reply) override;
  void remove_last_message(TenantId tenant, std::string session, MessagePosition place, Promise<SessionDetail> reply) override;
  void get_response(TenantId tenant, std::string session, std::string response, Promise<ResponseDetail> reply) override;
  void cancel_response(TenantId tenant, std::string session, std::string response, Promise<ResponseDetail> reply) override;
  void forget_response(TenantId tenant, std::string session, std::string response, Promise<Unit> reply) override;
  void export_session(TenantId tenant, std::string session, bool with_kv, Promise<ExportedSession> reply) override;
  void import_session(TenantId tenant, ImportRequest request, Promise<ImportedSession> reply) override;
  RequestId embed_images(TenantId tenant, EmbedImagesRequest request, Promise<ImageEmbeddings> reply) override;
  void read_images(TenantId tenant, std::vector<std::string> ids, std::size_t bytes_max, std::stop_token end,
                   Promise<ImageFiles> reply) override;
  void load_model(std::string model, Promise<Unit> reply) override;
  void unload_model(std::string model, Promise<Unit> reply) override;
  [[nodiscard]] Expected<std::string> resolve_model(const std::string& name) const override { return source_->resolve(name); }
  [[nodiscard]] Expected<std::string> choose_model(const std::string& name, Capability capability) const override {
    return source_->choose(name, capability);
  }
  [[nodiscard]] std::vector<ModelInfo> models() const override;
  [[nodiscard]] bool is_ready() const override;
  [[nodiscard]] MetricsSnapshot metrics() const override;
  [[nodiscard]] ActivitySnapshot activity() override;

 private:
  struct ImageReading;
  void read_next_image(std::shared_ptr<ImageReading> reading);
  void start_work_threads(WorkPool::Threads which, int count);
  void on_load_progress(const std::string& model, double progress) override;
  void on_loaded(const std::string& model, Expected<LoadedWorkers> loaded) override;
  void add_workers(const std::string& model, LoadedWorkers more) override;
  [[nodiscard]] bool shrink_workers(const std::string& model, std::size_t count) override;
  void on_load_queued(const std::string& model, std::uint64_t bytes) override;
  [[nodiscard]] StoredStates stored() override {
    // Requests hold memory besides the states: the files that clients send and read.
    return {.bytes = std::max(store_.memory_bytes(), bytes_held()), .bytes_max = options_.store.warm_bytes_max};
  }
  void limit_stored(kv::MemoryLimit limit) override { store_.limit_memory(limit); }
  [[nodiscard]] bool retire(const std::string& model) override;
  void hold_background(const std::string& model, bool holds) override;
  [[nodiscard]] std::vector<ModelUsage> usage() override;
  [[nodiscard]] bool has_streams() const override { return workers_.has_streams(); }
  [[nodiscard]] Expected<RequestShare> hold(const TenantId& tenant, std::size_t bytes);
  template <class T, class RequestT>
  [[nodiscard]] std::optional<RequestShare> hold_or_refuse(const TenantId& tenant, const RequestT& request, Promise<T>& reply);
  template <class T>
  [[nodiscard]] static Promise<T> holding(RequestShare share, Promise<T> reply);
  template <class T>
  void answer(Promise<T> reply, Task<Expected<T>> task);
  template <auto kMethod, class T, class... Args>
  void ask(Promise<T> reply, Args... args);
  template <auto kMethod, class T, class RequestT, class... Args>
  void ask_holding(TenantId tenant, RequestT request, Promise<T> reply, Args... args);
  template <class T>
  [[nodiscard]] T ask_router(MoveOnlyFunction<T()> question);
  [[nodiscard]] kv::StoreOptions with_engine(kv::StoreOptions options) const;
  void run_store(const std::unordered_set<SessionId>& sessions);

  // Constant after construction.
  const EngineOptions options_;
  const Clock& clock_;
  const TimePoint started_at_;
  const std::unique_ptr<ModelLoader> source_;
  const std::unique_ptr<kv::Catalog> catalog_;

  const std::unique_ptr<kv::SharedStates> shared_;  // Null: states stay here.
  kv::StateStore store_;
  const std::shared_ptr<TenantBudget> memory_;  // Shared with the listeners and their requests.
  WorkPool work_;
  Router router_;
  std::atomic<std::uint64_t> last_request_{0};
  std::atomic<bool> has_warmed_up_{false};  // The preloaded model did.
  std::promise<void> store_opened_;
  const std::shared_future<void> store_is_open_{store_opened_.get_future()};
  // Owned by the thread that calls start() and stop().
  bool started_ = false;
  bool is_left_hanging_ = false;
  std::thread router_thread_;
  std::vector<std::thread> work_threads_;
  std::thread store_thread_;
  LimitedJoin shared_read_thread_;
  LimitedJoin shared_write_thread_;
  std::thread catalog_thread_;
  WorkerSet workers_;
};

}  // namespace uma::engine
