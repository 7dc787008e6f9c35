// A service for this module's tests that does what a test tells it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "core/service.h"
#include "server/socket_test_support.h"

namespace uma::server {

inline constexpr std::chrono::seconds kPatience{kPatienceMs / 1000};

// Whether the condition becomes true within the time limit.
template <class Condition>
bool becomes(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// A service whose generations do nothing until the test delivers events to their sinks. Commands are answered at once, except
// touch_session, whose replies wait for the test. Thread-safe.
class FakeService : public Service {
 public:
  struct Generation {
    RequestId id;
    TenantId tenant;
    GenerateRequest request;
    std::shared_ptr<EventSink> sink;
  };

  explicit FakeService(std::uint64_t request_bytes_max = 1ul << 30)
      : memory_(std::make_shared<TenantBudget>(request_bytes_max, "holders", "the limit")) {}

  RequestShare open_share(TenantId tenant) override { return memory_->open(std::move(tenant)); }
  void run_apart(TenantId tenant, std::size_t bytes, MoveOnlyFunction<void()> work) override {
    {
      const MutexLock lock(mutex_);
      apart_.emplace_back(std::move(tenant), bytes);
      if (holds_apart_) return held_.push_back(std::move(work));
    }
    std::thread(std::move(work)).join();
  }
  // From now on work that is run apart waits for take_held().
  void hold_apart() {
    const MutexLock lock(mutex_);
    holds_apart_ = true;
  }
  [[nodiscard]] std::vector<MoveOnlyFunction<void()>> take_held() {
    const MutexLock lock(mutex_);
    return std::exchange(held_, {});
  }
  // The work that was run apart.
  [[nodiscard]] std::vector<std::pair<TenantId, std::size_t>> apart() {
    const MutexLock lock(mutex_);
    return apart_;
  }
  [[nodiscard]] std::uint64_t request_bytes() const { return memory_->bytes_used(); }
  // Keeps one entry for each sink.
  RequestId generate(TenantId tenant, GenerateRequest request, std::vector<std::shared_ptr<EventSink>> sinks) override {
    const MutexLock lock(mutex_);
    const RequestId first{last_id_ + 1};
    for (auto& sink : sinks) generations_.push_back({RequestId{++last_id_}, tenant, request, std::move(sink)});
    changed_.notify_all();
    return first;
  }
  // Vectors and scores wait for the test.
  struct Embedding {
    RequestId id;
    TenantId tenant;
    EmbedRequest request;
    Promise<EmbedResult> reply;
  };
  struct Reranking {
    RequestId id;
    RerankRequest request;
    Promise<RerankResult> reply;
  };
  RequestId embed(TenantId tenant, EmbedRequest request, Promise<EmbedResult> reply) override {
    const MutexLock lock(mutex_);
    const RequestId id{++last_id_};
    embeddings_.push_back({id, std::move(tenant), std::move(request), std::move(reply)});
    changed_.notify_all();
    return id;
  }
  // So do pictures.
  struct Drawing {
    RequestId id;
    PictureRequest request;
    std::shared_ptr<PictureSink> sink;
    Promise<PictureReceipt> reply;
  };
  RequestId draw(TenantId, PictureRequest request, std::shared_ptr<PictureSink> sink, Promise<PictureReceipt> reply) override {
    const MutexLock lock(mutex_);
    const RequestId id{++last_id_};
    drawings_.push_back({id, std::move(request), std::move(sink), std::move(reply)});
    changed_.notify_all();
    return id;
  }
  RequestId rerank(TenantId, RerankRequest request, Promise<RerankResult> reply) override {
    const MutexLock lock(mutex_);
    const RequestId id{++last_id_};
    rerankings_.push_back({id, std::move(request), std::move(reply)});
    changed_.notify_all();
    return id;
  }
  // Ten tokens for each message; the model "slow" never replies.
  void count_tokens(TenantId, GenerateRequest request, std::stop_token end, Promise<std::int32_t> reply) override {
    if (request.model == "slow") {
      const MutexLock lock(mutex_);
      counting_ = std::move(end);
      counts_.push_back(std::move(reply));
      return;
    }
    if (request.model == "missing") return reply(fail(ErrorCode::model_unknown, "no such model"));
    reply(static_cast<std::int32_t>(request.input.messages.size() * 10));
  }
  // A token for each byte.
  void tokenize(TenantId, TokenizeRequest request, Promise<TokenizedText> reply) override {
    TokenizedText result;
    for (const char c : request.text) result.tokens.push_back(static_cast<unsigned char>(c));
    for (std::size_t i = 1; request.wants_texts && i <= request.text.size(); ++i) result.text_ends.push_back(i);
    if (request.wants_texts) result.text = request.text;
    reply(std::move(result));
  }
  void detokenize(TenantId, DetokenizeRequest request, Promise<ConvertedText> reply) override {
    reply(ConvertedText{.text = std::string(request.tokens.begin(), request.tokens.end())});
  }
  void format_chat(TenantId, GenerateRequest request, Promise<ConvertedText> reply) override {
    reply(ConvertedText{.text = "[" + request.input.messages.front().content + "]"});
  }
  void cancel(RequestId id, Promise<bool> reply) override {
    {
      const MutexLock lock(mutex_);
      cancelled_.push_back(id);
      changed_.notify_all();
    }
    reply(true);
  }
  void cancel_session(TenantId, std::string session, Promise<bool> reply) override { reply(session == "busy"); }
  void create_session(TenantId, CreateSessionRequest request, Promise<SessionInfo> reply) override {
    reply(session_named(request.name));
  }
  void append_input(TenantId, AppendRequest request, Promise<SessionInfo> reply) override {
    if (request.session == "unknown") {
      reply(fail(ErrorCode::session_unknown, "no such session"));
      return;
    }
    SessionInfo session = session_named(request.session);
    session.pending_tokens = 7;
    reply(session);
  }
  void end_session(TenantId, std::string, Promise<Unit> reply) override { reply(Unit{}); }
  // The fork ends behind the turn.
  void fork_session(TenantId, ForkRequest request, Promise<SessionInfo> reply) override {
    SessionInfo info = session_named(request.name);
    info.parent.value = "id-of-" + request.session;
    info.fork_turn = request.turn.value_or(4) + 1;
    info.metadata = changed_metadata("", request.metadata);
    reply(info);
  }
  void rewind_session(TenantId, std::string session, std::int32_t turn, Promise<SessionInfo> reply) override {
    SessionInfo info = session_named(session);
    info.turns = turn + 1;
    reply(info);
  }
  void touch_session(TenantId, std::string, Promise<SessionInfo> reply) override {
    const MutexLock lock(mutex_);
    touches_.push_back(std::move(reply));
    changed_.notify_all();
  }
  void get_session(TenantId, std::string session, Promise<SessionDetail> reply) override {
    SessionDetail detail;
    detail.info = session_named(session);
    detail.info.mode = SessionMode::text;
    detail.text = std::string(1'000'000, 'x');
    reply(detail);
  }
  void list_receipts(TenantId, std::string, Promise<std::vector<TurnReceipt>> reply) override {
    reply(std::vector<TurnReceipt>{{.turn = 1, .receipt = std::make_shared<const Receipt>()}});
  }
  void find_receipt(TenantId, std::string name, Promise<Usage> reply) override {
    if (name == "gone") return reply(fail(ErrorCode::session_unknown, "no reply"));
    reply(Usage{.prompt_tokens = 7, .cache_miss = {.kind = CacheMissKind::tools, .token = 3}});
  }
  void list_sessions(TenantId, SessionListRequest request, Promise<SessionList> reply) override {
    const SessionInfo info = session_named(request.after.empty() ? "one" : "behind " + request.after);
    reply(SessionList{.sessions = std::vector(sessions_listed.load(), info), .has_more = request.limit == 1});
  }
  // The session had a title. The name "taken" is another session's.
  void update_session(TenantId, UpdateSessionRequest request, Promise<SessionInfo> reply) override {
    if (request.name == "taken") return reply(fail(ErrorCode::session_name_taken, "a session \"taken\" exists already"));
    SessionInfo info = session_named(request.session);
    if (request.name) info.name = *request.name;
    info.metadata = changed_metadata(request.replaces_metadata ? "" : R"({"title":"old"})", request.metadata);
    reply(info);
  }
  void remove_last_message(TenantId, std::string session, MessagePosition, Promise<SessionDetail> reply) override {
    SessionDetail detail;
    detail.info = session_named(session);
    reply(detail);
  }
  // Every session has one response until it is deleted, which is its second turn.
  void store_response(std::string response, std::string request = "") {
    const MutexLock lock(mutex_);
    stored_response_ = std::move(response);
    stored_request_ = std::move(request);
  }
  void get_response(TenantId, std::string session, std::string response, Promise<ResponseDetail> reply) override {
    if (!is_stored(response)) return reply(fail(ErrorCode::session_unknown, "no such response"));
    ResponseDetail detail;
    detail.session.info.id.value = session;
    detail.session.messages = {{"user", "one"}, {"assistant", "two"}, {"user", "three"}, {"assistant", "four"}};
    detail.session.turns_begin = {0, 2};
    detail.response =
        std::make_shared<const ResponseRecord>(ResponseRecord{.turn = 1, .id = response, .request = stored_request()});
    reply(std::move(detail));
  }
  void cancel_response(TenantId tenant, std::string session, std::string response, Promise<ResponseDetail> reply) override {
    get_response(std::move(tenant), std::move(session), std::move(response), std::move(reply));
  }
  void forget_response(TenantId, std::string, std::string response, Promise<Unit> reply) override {
    if (!is_stored(response)) return reply(fail(ErrorCode::session_unknown, "no such response"));
    const MutexLock lock(mutex_);
    stored_response_.clear();
    reply(Unit{});
  }
  void export_session(TenantId, std::string session, bool with_kv, Promise<ExportedSession> reply) override {
    ExportedSession made{.info = session_named(session), .file = file_of(Bytes(1'000'000, std::byte{'s'}))};
    if (with_kv) {
      // Too many bytes for a client to receive at once.
      const auto kv = std::make_shared<const Bytes>(1ul << 20, std::byte{'k'});
      const MutexLock lock(mutex_);
      exported_ = kv;
      made.file.parts.assign(64, *kv);
      made.file.owner = kv;
      made.kv_bytes = 64ul << 20;
    }
    reply(std::move(made));
  }
  // The owner of the bytes of the last export with KV.
  std::weak_ptr<const Bytes> exported() {
    const MutexLock lock(mutex_);
    return exported_;
  }
  // The imported session's name states the length of the file.
  void import_session(TenantId, ImportRequest request, Promise<ImportedSession> reply) override {
    if (request.name == "bad") return reply(fail(ErrorCode::proto_field, "no session file"));
    reply(ImportedSession{.info = session_named(std::to_string(request.file.size())), .are_tokens_kept = false});
  }
  std::atomic<std::size_t> sessions_listed{1};
  std::atomic<std::int32_t> dimensions{0};
  std::atomic<bool> reads_images{false};
  std::atomic<bool> has_started{false};
  std::atomic<bool> has_database{true};
  // Returns a vector of two numbers for each image.
  RequestId embed_images(TenantId, EmbedImagesRequest request, Promise<ImageEmbeddings> reply) override {
    if (request.options.model == "blind") {
      reply(fail(ErrorCode::model_capability, "reads no images"));
    } else {
      reply(ImageEmbeddings{.embeddings = std::vector<std::vector<float>>(request.images.size(), {0.6f, -0.8f})});
    }
    const MutexLock lock(mutex_);
    return RequestId{++last_id_};
  }
  // Returns a file with the image's id while the limit allows it.
  void read_images(TenantId, std::vector<std::string> ids, std::size_t bytes_max, std::stop_token,
                   Promise<ImageFiles> reply) override {
    ImageFiles read;
    for (const std::string& id : ids) {
      const auto name = std::as_bytes(std::span(id));
      read.files.emplace_back(name.begin(), name.size() <= bytes_max ? name.end() : name.begin());
    }
    reply(std::move(read));
  }
  void load_model(std::string model, Promise<Unit> reply) override {
    if (model != "fake") return reply(fail(ErrorCode::model_unknown, "no such model"));
    reply(Unit{});
  }
  void unload_model(std::string model, Promise<Unit> reply) override { load_model(std::move(model), std::move(reply)); }
  Expected<std::string> resolve_model(const std::string& name) const override {
    if (name.starts_with("gpt-")) return fail(ErrorCode::model_unknown, "no such model");
    return name.empty() ? "fake" : name;
  }
  Expected<std::string> choose_model(const std::string& name, Capability) const override {
    return name.starts_with("gpt-") ? "fake" : name;
  }
  std::vector<ModelInfo> models() const override {
    ModelInfo model;
    model.name = "fake";
    model.state = has_started.load() ? ModelState::ready : ModelState::loading;
    model.reads_images = reads_images.load();
    model.dimensions = dimensions.load();
    return {model};
  }
  bool is_ready() const override { return has_started.load(); }
  MetricsSnapshot metrics() const override {
    MetricsSnapshot snapshot;
    snapshot.model = "fake";
    snapshot.catalog_reachable = has_database.load() ? 1 : 0;
    return snapshot;
  }
  ActivitySnapshot activity() override {
    const MutexLock lock(mutex_);
    return activity_;
  }
  void set_activity(ActivitySnapshot activity) {
    const MutexLock lock(mutex_);
    activity_ = std::move(activity);
  }

  // The next generation that was requested.
  Generation next_generation() {
    const MutexLock lock(mutex_);
    wait([&]() REQUIRES_LOCK(mutex_) { return !generations_.empty(); });
    Generation generation = std::move(generations_.front());
    generations_.pop_front();
    return generation;
  }
  Embedding next_embedding() { return next_of(&FakeService::embeddings_); }
  Drawing next_drawing() { return next_of(&FakeService::drawings_); }
  Reranking next_reranking() { return next_of(&FakeService::rerankings_); }
  Promise<SessionInfo> next_touch() {
    const MutexLock lock(mutex_);
    wait([&]() REQUIRES_LOCK(mutex_) { return !touches_.empty(); });
    Promise<SessionInfo> reply = std::move(touches_.front());
    touches_.pop_front();
    return reply;
  }
  // Returns true once `count` generations were cancelled.
  bool wait_cancelled(std::size_t count) {
    const MutexLock lock(mutex_);
    return wait_for([&]() REQUIRES_LOCK(mutex_) { return cancelled_.size() >= count; });
  }
  std::vector<RequestId> cancelled() const {
    const MutexLock lock(mutex_);
    return cancelled_;
  }

  // The end of the last count for the model "slow".
  std::optional<std::stop_token> counting() const {
    const MutexLock lock(mutex_);
    return counting_;
  }

  static SessionInfo session_named(const std::string& name) {
    SessionInfo session;
    session.id.value = "id-of-" + name;
    session.name = name;
    return session;
  }

 private:
  [[nodiscard]] bool is_stored(const std::string& response) {
    const MutexLock lock(mutex_);
    return response == stored_response_;
  }
  [[nodiscard]] std::string stored_request() {
    const MutexLock lock(mutex_);
    return stored_request_;
  }
  const std::shared_ptr<TenantBudget> memory_;
  // `queue` is a member that the mutex guards.
  template <class SelfT, class T>
  T next_of(std::deque<T> SelfT::* queue) {
    const MutexLock lock(mutex_);
    wait([&]() REQUIRES_LOCK(mutex_) { return !(this->*queue).empty(); });
    T next = std::move((this->*queue).front());
    (this->*queue).pop_front();
    return next;
  }
  template <class ConditionT>
  bool wait_for(ConditionT&& condition) REQUIRES_LOCK(mutex_) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!condition()) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      changed_.wait_until(mutex_, deadline);
    }
    return true;
  }
  template <class ConditionT>
  void wait(ConditionT&& condition) REQUIRES_LOCK(mutex_) {
    UMA_CHECK(wait_for(condition));
  }

  mutable Mutex mutex_;
  CondVar changed_;
  std::string stored_response_ GUARDED_BY(mutex_) = "0123456789abcdef";
  std::string stored_request_ GUARDED_BY(mutex_);
  std::vector<std::pair<TenantId, std::size_t>> apart_ GUARDED_BY(mutex_);
  bool holds_apart_ GUARDED_BY(mutex_) = false;
  std::vector<MoveOnlyFunction<void()>> held_ GUARDED_BY(mutex_);
  std::deque<Generation> generations_ GUARDED_BY(mutex_);
  std::deque<Embedding> embeddings_ GUARDED_BY(mutex_);
  std::deque<Drawing> drawings_ GUARDED_BY(mutex_);
  std::deque<Reranking> rerankings_ GUARDED_BY(mutex_);
  std::deque<Promise<SessionInfo>> touches_ GUARDED_BY(mutex_);
  std::vector<RequestId> cancelled_ GUARDED_BY(mutex_);
  std::optional<std::stop_token> counting_ GUARDED_BY(mutex_);
  std::vector<Promise<std::int32_t>> counts_ GUARDED_BY(mutex_);
  std::weak_ptr<const Bytes> exported_ GUARDED_BY(mutex_);
  ActivitySnapshot activity_ GUARDED_BY(mutex_);
  std::uint64_t last_id_ GUARDED_BY(mutex_) = 0;
};

inline Event token(std::string_view text) {
  return TokenEvent{text, 5};
}
inline Event eos(FinishReason reason = FinishReason::stop) {
  return EosEvent{reason, {}, "", std::nullopt};
}

}  // namespace uma::server
