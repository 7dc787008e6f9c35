// The single consumer of the global queue: admits requests, owns the tables of sessions and models, sends tasks to lanes,
// commits what lanes report and only then tells the client. Everything but post() runs on the router's thread; replies and
// terminal events come from it. Tokens go from the lane to the door directly. What needs a model that is not loaded asks the
// source for it and waits.
//
// Invariants: (1) every request that was accepted gets exactly one terminal event. (2) At most one request of a session is
// under way. (3) A session is of one model, and pinned to one lane of it while that is loaded.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <stop_token>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "base/byte_budget.h"
#include "base/clock.h"
#include "base/mailbox.h"
#include "base/metrics.h"
#include "base/random.h"
#include "capability/text_embedding.h"
#include "core/embedding.h"
#include "core/event.h"
#include "core/limits.h"
#include "core/request.h"
#include "core/service.h"
#include "core/session_info.h"
#include "engine/embed_lane.h"
#include "engine/grammar_cache.h"
#include "engine/image_references.h"
#include "engine/image_runs.h"
#include "engine/lane.h"
#include "engine/portable_session.h"
#include "engine/preparer.h"
#include "engine/served_models.h"
#include "engine/session_table.h"
#include "engine/vision.h"
#include "engine/worker_source.h"
#include "kv/catalog.h"
#include "kv/state_store.h"
#include "llm/grammar.h"
#include "llm/model.h"

namespace uma::engine {

class ImageFetcher;

struct RouterOptions {
  Limits limits;
  std::uint64_t seed = 0;                        // of generations that bring none
  std::function<std::uint64_t()> ids = nullptr;  // what ids of sessions are made of; null: the same numbers as for the seeds
  std::size_t record_bytes_max = 2u << 20;       // of memory for what was said in sessions that nobody uses at the moment
  ImageFetcher* fetcher = nullptr;               // outlives the router; null: no image is fetched from a URL
  // No session has these images any more; `is_used` tells any thread whether one has by then. Null: nobody needs to know.
  std::function<void(std::vector<std::string> ids, std::function<bool(const std::string& id)> is_used)> on_images_free =
      nullptr;
};

class Router {
 public:
  using Command = std::move_only_function<void()>;

  // Begins with the sessions that the catalog has kept. All references outlive the router.
  Router(const RouterOptions& options, WorkerSource& source, kv::Catalog& catalog, kv::StateStore& store, Preparer& preparer,
         const Clock& clock);
  ~Router();

  // Before the first step: those that the catalog has kept.
  [[nodiscard]] std::unordered_set<SessionId> session_ids() const;

  // Likewise: the images that sessions have.
  [[nodiscard]] std::unordered_set<std::string> image_ids() const { return images_->all(); }

  // --- Any thread.
  void post(Command command) { inbox_.push(std::move(command)); }
  void close() { inbox_.close(); }
  [[nodiscard]] std::int64_t requests_open() const { return requests_open_.value(); }
  // Receipt of the oldest request that no lane has, by the clock, in µs; 0: there is none.
  [[nodiscard]] std::int64_t waiting_since_us() const { return waiting_since_us_.value(); }
  [[nodiscard]] std::int64_t sessions_count() const { return sessions_.count(); }
  [[nodiscard]] std::uint64_t requests_refused() const { return requests_refused_.value(); }

  // --- Router thread.
  // Runs what waits in the queue and what is due. True when there was something.
  bool step();
  // Waits for a command or the next thing that is due; false once closed and empty.
  bool wait();

  // Loads the model, as a request for it would. Replies when it is there, or why not.
  void load_model(const std::string& name, Reply<Unit> reply);
  // What wants a model that the source was asked for waits until one of these two is called.
  void on_loaded(const std::string& name, ServedModel loaded);
  // Further workers of a model that is loaded, and in the end, where nobody uses it, only the first ones again.
  void add_lanes(const std::string& name, std::span<Lane* const> lanes, std::span<EmbedLane* const> embed_lanes) {
    models_.add_lanes(name, lanes, embed_lanes);
  }
  [[nodiscard]] bool keep_lanes(const std::string& name, std::size_t count);
  void on_load_failed(const std::string& name, const Error& error) { models_.set_failed(name, error); }
  // Requests that asked for progress hear how far the load is, 0 to 1.
  void on_load_progress(const std::string& name, double progress);
  // It waits for so many bytes of memory, and the deadlines of the requests that wait for it count meanwhile; 0: it goes on.
  void on_load_queued(const std::string& name, std::uint64_t bytes);
  // ServedModels
  [[nodiscard]] bool retire(const std::string& name) { return models_.retire(name); }
  void on_retired(const std::string& name) { models_.set_retired(name); }
  void hold_background(const std::string& name, bool holds) { models_.hold_background(name, holds); }
  [[nodiscard]] std::vector<ModelUsage> usage() const { return models_.usage(); }
  void on_result(TaskResult result);
  // A step of a request, for any thread: what it throws ends the request, unless a lane has that.
  template <class Step>
  [[nodiscard]] auto of(RequestId id, Step step, const std::source_location& place = std::source_location::current()) {
    return [this, id, step = std::move(step), place]<class... Args>(Args&&... args) mutable -> void {
      try {
        step(std::forward<Args>(args)...);
      } catch (...) {
        post([this, id, error = thrown_error(place)] { abandon(id, error); });
      }
    };
  }
  // From now on new generations are refused.
  void drain() { draining_ = true; }
  // Ends every request that no lane has, as cancelled.
  void cancel_all();

  // What there is no room for never becomes a request.
  void refuse(std::span<const std::shared_ptr<EventSink>> sinks, const Error& error);
  template <class T>
  void refuse(Reply<T>& reply, Error error) {
    requests_refused_.add();
    reply(std::unexpected(std::move(error)));
  }
  // As Service; the others have the ids that follow.
  void generate(RequestId id, const TenantId& tenant, GenerateRequest request, std::vector<std::shared_ptr<EventSink>> sinks);
  void embed(RequestId id, const TenantId& tenant, EmbedRequest request, Reply<EmbedResult> reply);
  void rerank(RequestId id, const TenantId& tenant, RerankRequest request, Reply<RerankResult> reply);
  void cancel(RequestId id, Reply<bool> reply);
  void cancel_session(const TenantId& tenant, const std::string& session, Reply<bool> reply);
  void create_session(TenantId tenant, CreateSessionRequest request, Reply<SessionInfo> reply);
  void append_input(TenantId tenant, AppendRequest request, Reply<SessionInfo> reply);
  void end_session(const TenantId& tenant, const std::string& session, Reply<Unit> reply);
  void fork_session(const TenantId& tenant, const std::string& session, std::string name, Reply<SessionInfo> reply);
  void rewind_session(const TenantId& tenant, const std::string& session, std::int32_t turn, Reply<SessionInfo> reply);
  void touch_session(const TenantId& tenant, const std::string& session, Reply<SessionInfo> reply);
  void get_session(const TenantId& tenant, const std::string& session, Reply<SessionDetail> reply);
  void list_sessions(const TenantId& tenant, const SessionListRequest& request, Reply<SessionList> reply);
  void set_metadata(const TenantId& tenant, const std::string& session, std::string metadata, Reply<SessionDetail> reply);
  void remove_last_message(TenantId tenant, std::string session, MessagePosition place, Reply<SessionDetail> reply);
  void get_response(const TenantId& tenant, const std::string& session, const std::string& response,
                    Reply<ResponseDetail> reply);
  void cancel_response(const TenantId& tenant, const std::string& session, const std::string& response,
                       Reply<ResponseDetail> reply);
  void forget_response(const TenantId& tenant, const std::string& session, const std::string& response, Reply<Unit> reply);
  void export_session(const TenantId& tenant, const std::string& session, bool with_kv, Reply<ExportedSession> reply);
  void import_session(TenantId tenant, ImportRequest request, Reply<ImportedSession> reply);
  void embed_images(const TenantId& tenant, EmbedImagesRequest request, Reply<ImageEmbeddings> reply);

  // For the simulator: every session's invariants hold.
  void check_invariants() const;

 private:
  // Where a session that a response makes begins.
  struct Origin {
    kv::RecordPtr record;
    std::size_t lane = 0;
    SessionId forked_from;
  };
  // A request that was accepted and has not ended.
  struct Open {
    std::vector<std::shared_ptr<EventSink>> sinks;  // shared with the door; one where a lane has it, else of each generation
    std::string model;                              // that it waits for, or uses; empty: not known yet
    SessionId session;
    sched::Flow flow;
    TimePoint received{};
    TimePoint timeout = kNever;
    TimePoint deadline = kNever;              // of waiting for another reply of its session, or for memory for its model
    std::optional<std::int64_t> deadline_ms;  // GenerateOptions
    bool wants_progress = false;
    std::optional<ReplyGrammars> grammars;  // shared with its task; nothing: they were not compiled
    TakenImages images;                     // that came with it
    RequestShare share;                     // of memory
    std::stop_source end;                   // of what is done for it elsewhere
    ModelUse use;                           // from when the model is there
    Lane* lane = nullptr;                   // it is there; null: with the router or the preparer
    bool has_result = false;                // the lane has reported its end
  };
  // What goes on when the reply of a session has ended.
  struct WaitingForReply {
    RequestId request;  // whose it is; zero: of none
    Command then;
  };
  // The same of embeddings and reranking.
  using TextsRequest = std::variant<EmbedRequest, RerankRequest>;
  using TextsResult = std::variant<EmbedResult, RerankResult>;
  using TextsReply = std::variant<Reply<EmbedResult>, Reply<RerankResult>>;
  struct OpenTexts {
    TextsReply reply;
    std::string model;  // that it waits for, or uses; empty: there is none
    sched::Flow flow;
    TimePoint received{};
    ModelUse use{};             // from when the model is there
    EmbedLane* lane = nullptr;  // it is there; null: with the router or the preparer
  };
  void with_model_of(const TenantId& tenant, const std::string& session, ServedModels::Then then, Wanted wanted = {});
  [[nodiscard]] Lane* lane_of(const Session& session) const;
  [[nodiscard]] static Expected<Unit> check_record(const ServedModel& served, const kv::SessionRecord& record);
  [[nodiscard]] SessionInfo info_of(const Session& session) const;
  [[nodiscard]] std::size_t least_loaded_lane(const ServedModel& served) const;
  void commit_and_reply(SessionLock lock, kv::SessionRecord next, Reply<SessionInfo> reply);
  void commit_and_reply(SessionLock lock, kv::SessionRecord next, Reply<SessionDetail> reply);
  void remove_last_message_of(Session& session, ModelUse use, Reply<SessionDetail> reply);
  void add_session(kv::SessionRecord made, std::size_t lane, SessionId forked_from, Reply<SessionInfo> reply);

  void export_kv(ModelUse use, kv::RecordPtr record, ExportedSession made, Reply<ExportedSession> reply);
  void export_conversation(ModelUse use, kv::RecordPtr record, ExportedSession made, Reply<ExportedSession> reply);
  void add_imported(const ModelUse& use, TenantId tenant, std::string name, ImportedRecord imported,
                    std::optional<Expected<kv::StateImage>> image, Reply<ImportedSession> reply);
  [[nodiscard]] ImportedKv keep_imported(const SessionId& id, Expected<kv::StateImage> image);

  void import_with(ModelUse use, const TenantId& tenant, ImportRequest request, std::vector<std::string> images,
                   Reply<ImportedSession> reply);
  [[nodiscard]] Reply<ImportedSession> until_imported(ImportedImages images, Reply<ImportedSession> reply);
  void import_record_made(ModelUse use, const TenantId& tenant, ImportRequest request, Expected<ImportedRecord> imported,
                          Reply<ImportedSession> reply);

  void note_images(const SessionId& session, const std::vector<std::string>& extras);
  void give_up_images(std::vector<std::string> ids);
  void give_up_images(TakenImages taken);
  template <class T>
  [[nodiscard]] Reply<T> using_images(TakenImages images, Reply<T> reply);
  [[nodiscard]] Expected<Unit> check_images(const ServedModel& served, std::size_t bytes) const;
  void embed_images(const TenantId& tenant, ModelUse use, EmbedImagesRequest request, TimePoint deadline,
                    Reply<ImageEmbeddings> reply);
  void read_images(RequestId id, const TenantId& tenant, GenerateRequest request);
  void read_images(ModelUse use, TenantId tenant, AppendRequest request, Reply<SessionInfo> reply);
  [[nodiscard]] static Expected<std::vector<ImageRun>> images_of(const ServedModel& served, const kv::SessionRecord& record,
                                                                 std::span<const Token> tokens);
  [[nodiscard]] Expected<Unit> admit(const GenerateRequest& request, std::int64_t generations) const;
  [[nodiscard]] static Expected<Unit> check_fits(const ServedModel& served, std::size_t known, std::size_t added);
  [[nodiscard]] static Expected<Unit> check_record_fits(const ServedModel& served, const kv::SessionRecord& record,
                                                        std::size_t added);
  void begin_with_model(RequestId id, const TenantId& tenant, GenerateRequest request, Expected<ModelUse> use);
  void begin_generation(RequestId id, const TenantId& tenant, GenerateRequest request);
  void generate_one_shot(RequestId id, GenerateRequest request);
  [[nodiscard]] Expected<Unit> start_one_shot(RequestId id, ReplyGrammars grammars, const kv::SessionRecord& record,
                                              const GenerateRequest& request);
  void generate_in_session(RequestId id, const TenantId& tenant, GenerateRequest request);
  void generate_in(Session& session, RequestId id, const GenerateRequest& request);
  void compile_and_generate_in(Session& session, RequestId id, const GenerateRequest& request);
  void commit_and_start(RequestId id, SessionLock lock, kv::SessionRecord record, const GenerateRequest& request);
  void start_session_task(RequestId id, Session& session, const GenerateRequest& request);
  [[nodiscard]] Expected<Unit> try_start_session_task(RequestId id, Session& session, const GenerateRequest& request);
  void generate_response(RequestId id, const TenantId& tenant, GenerateRequest request);
  void continue_with_response(RequestId id, const TenantId& tenant, Session& session, GenerateRequest request);
  void prepare_response(RequestId id, kv::RecordPtr record, std::optional<Origin> origin, GenerateRequest request);
  [[nodiscard]] Expected<Unit> start_response(RequestId id, const kv::RecordPtr& record, kv::SessionRecord next,
                                              std::optional<Origin> origin, const GenerateRequest& request);
  void run_waiting_for_replies(const SessionId& id);
  void tell_session(ModelUse use, const TenantId& tenant, const std::string& session, Reply<SessionDetail> reply);
  [[nodiscard]] SessionDetail detail_of(const Session& session, const kv::SessionRecord& record) const;
  void append_locked(ModelUse use, const SessionId& id, Input input, std::optional<ChatOptions> chat, Reply<SessionInfo> reply);
  [[nodiscard]] Task make_task(RequestId id, const Open& open, const GenerateOptions& options, std::vector<Token> tokens,
                               Droppable droppable = {});
  void read_reply(const ServedModel& served, Task& task, ChatOptions chat);
  void send(Task task, Lane& lane);
  [[nodiscard]] kv::SessionRecord finished_record(const kv::SessionRecord& record, const TaskResult& result,
                                                  const ResponseDraft* draft) const;
  void set_sent(RequestId id);
  void end_request(RequestId id, const Event& terminal);
  void refuse(RequestId id, Error error);
  void abandon(RequestId id, const Error& error);
  void note_open();
  [[nodiscard]] std::vector<RequestId> split(RequestId id);
  [[nodiscard]] static Expected<Unit> hold(const Open& open, std::size_t tokens);
  [[nodiscard]] Expected<Unit> check_waiting(const SessionId& id) const;

  void open_texts(RequestId id, const TenantId& tenant, TextsRequest request, TextsReply reply);
  [[nodiscard]] Expected<Unit> admit_texts(const TextsRequest& request) const;
  void prepare_texts(RequestId id, TextsRequest request, Expected<ModelUse> use);
  void send_texts(RequestId id, TextsRequest request, capability::EmbedTexts texts);
  void refuse_texts(RequestId id, Error error);
  void end_texts(RequestId id, Expected<TextsResult> result);
  void expire();
  [[nodiscard]] TimePoint deadline_of(const Open& open) const;

  const RouterOptions options_;
  WorkerSource& source_;
  kv::StateStore& store_;
  Preparer& preparer_;
  const Clock& clock_;
  const std::shared_ptr<ByteBudget> exports_;  // KV that clients still read; shared with the files it is in

  // Owned by the router's thread.
  ServedModels models_;
  Random random_;
  std::shared_ptr<ImageReferences> images_ = std::make_shared<ImageReferences>();  // shared with who removes files later
  SessionTable sessions_;
  std::unordered_map<RequestId, Open> requests_;
  std::unordered_map<RequestId, OpenTexts> texts_requests_;
  std::int64_t generations_open_ = 0;                                              // of requests_
  std::unordered_map<const Lane*, std::int64_t> lanes_open_;                       // requests that each lane has; none has 0
  std::unordered_map<SessionId, std::vector<WaitingForReply>> waiting_for_reply_;  // that is being made in the session
  std::map<RequestId, TimePoint> unsent_;  // of those, the ones that no lane has: when they were received
  std::vector<Command> taken_;
  TimePoint next_expiry_ = kNever;
  bool draining_ = false;

  // Shared.
  Mailbox<Command> inbox_;
  Gauge requests_open_;
  Gauge waiting_since_us_;
  Counter requests_refused_;
};

}  // namespace uma::engine
