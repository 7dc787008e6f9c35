// Router, work pool, lanes and image encoder on a FakeModel, without threads: the test runs their steps. Fixtures derive from
// it.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.h"
#include "engine/model/model_loader_test_support.h"
#include "engine/router/router.h"
#include "testing/fake_catalog.h"
#include "testing/fake_model.h"
#include "testing/recording_sink.h"
#include "testing/sim_clock.h"

namespace uma::engine {

inline const TenantId kTenant{"test"};

using testing::FakeContext;
using testing::FakeModel;
using testing::FakeOptions;
using testing::RecordingSink;
using SinkPtr = std::shared_ptr<RecordingSink>;

// The reply of a task, empty until it comes.
template <class T>
using PendingReply = std::shared_ptr<std::optional<Expected<T>>>;

class EngineBench {
 protected:
  explicit EngineBench(const FakeOptions& options, std::vector<std::string> models = {"fake"})
      : options_(options), source_(std::move(models)) {
    init_log(LogLevel::error);
  }
  ~EngineBench() = default;

  // --- Lives of the daemon

  // Starts a daemon with the sessions of the catalog. No model is loaded.
  void start_router(const RouterOptions& options = {}) {
    router_.reset();
    lanes_.clear();
    router_ = std::make_unique<Router>(options, source_, catalog_, *store_, work_, clock_);
  }
  // A lane on a context of `options_`, which `context_` points to.
  Lane& add_lane(LaneOptions options = {}, std::unique_ptr<llm::Context> prefill = nullptr) {
    auto context = std::make_unique<FakeContext>(options_);
    context_ = context.get();
    lanes_.push_back(std::make_unique<Lane>(
        std::move(options), std::move(context), std::move(prefill), model_->vocab(), clock_, [this](GenerationResult result) {
          router_->post([this, result = std::move(result)]() mutable { router_->generations().on_result(std::move(result)); });
        }));
    return *lanes_.back();
  }
  // Serves the model with all lanes of this daemon.
  void serve_lanes(const std::string& name = "fake", ModelDefaults defaults = {}) {
    std::vector<Lane*> lanes;
    for (const auto& lane : lanes_) lanes.push_back(lane.get());
    ServedModel served = chat_model(model_, std::move(lanes), encoder_);
    served.defaults = std::move(defaults);
    router_->on_loaded(name, std::move(served));
  }
  void load(std::size_t lanes = 1) {
    while (lanes_.size() < lanes) add_lane();
    serve_lanes();
  }
  [[nodiscard]] Lane& lane() { return *lanes_.front(); }
  // Stores the states of the lanes, as the daemon does when it stops.
  void close_lanes() {
    for (const auto& lane : lanes_) {
      lane->close();
      lane->cancel_all();
    }
  }

  // --- Steps

  bool step() {
    bool worked = router_->step();
    worked |= work_.step();
    if (encoder_ && encoder_runs_) worked |= encoder_->step();
    for (const auto& lane : lanes_) {
      worked |= lane->step().did_work;
      lane->check_invariants();
      if (PrefillLane* prefill = lane->prefill_lane()) worked |= prefill->step().did_work;
    }
    if (embed_lane_ && embed_lane_runs_) worked |= embed_lane_->step().did_work;
    worked |= store_->step();
    router_->check_invariants();
    clock_.advance(step_takes_);
    return worked;
  }
  // Steps until nothing is left to do.
  void settle() {
    for (int quiet = 0; quiet < 3;) quiet = step() ? 0 : quiet + 1;
  }
  void step_until_tokens(const RecordingSink& sink) {
    for (int i = 0; i < 100 && sink.tokens.empty(); ++i) step();
    ASSERT_FALSE(sink.tokens.empty());
  }

  // --- Requests

  template <class T>
  [[nodiscard]] PendingReply<T> begin(Task<Expected<T>> task) {
    auto answer = std::make_shared<std::optional<Expected<T>>>();
    router_->tasks().answer(
        [answer](Expected<T> value) {
          EXPECT_FALSE(*answer) << "a second answer";
          *answer = std::move(value);
        },
        std::move(task));
    return answer;
  }
  template <class T>
  Expected<T> wait_for(Task<Expected<T>> task) {
    const PendingReply<T> answer = begin(std::move(task));
    settle();
    return std::move(*answer).value();
  }
  // One request with `count` generations, whose ids are consecutive; `last_id_` is the id of the last one.
  std::vector<SinkPtr> begin_all(GenerateRequest request, std::size_t count, const TenantId& tenant = kTenant) {
    std::vector<SinkPtr> sinks;
    while (sinks.size() < count) sinks.push_back(std::make_shared<RecordingSink>());
    router_->generations().start(RequestId{last_id_.value + 1}, tenant, std::move(request), {sinks.begin(), sinks.end()});
    last_id_.value += count;
    return sinks;
  }
  SinkPtr begin(GenerateRequest request, const TenantId& tenant = kTenant) {
    return begin_all(std::move(request), 1, tenant).front();
  }
  SinkPtr generate(GenerateRequest request, const TenantId& tenant = kTenant) {
    const SinkPtr sink = begin(std::move(request), tenant);
    settle();
    return sink;
  }

  // --- Sessions

  SessionCommands& sessions() { return router_->sessions(); }
  Expected<SessionInfo> create(const CreateSessionRequest& request, const TenantId& tenant = kTenant) {
    return wait_for(sessions().create(tenant, request));
  }
  std::string begin_chat(OnFull on_full = OnFull::error) {
    CreateSessionRequest request;
    request.mode = SessionMode::chat;
    request.on_full = on_full;
    return create(request).value().id.value;
  }
  Expected<SessionInfo> append(const std::string& session, const std::string& text = "more") {
    return wait_for(sessions().append(kTenant, {.session = session, .input = {.text = text, .messages = {}}}));
  }
  Expected<SessionInfo> fork(const std::string& session) { return wait_for(sessions().fork(kTenant, {.session = session})); }
  Expected<SessionInfo> rewind(const std::string& session, std::int32_t turn) {
    return wait_for(sessions().rewind(kTenant, session, turn));
  }
  Expected<Unit> end(const std::string& session, const TenantId& tenant = kTenant) {
    return wait_for(sessions().end(tenant, session));
  }
  // Puts a record into the catalog, as an earlier daemon would have.
  void keep(const kv::SessionRecord& record) {
    catalog_.kept.commit(std::make_shared<const kv::SessionRecord>(record), nullptr, [](const Expected<Unit>&) {});
  }
  [[nodiscard]] kv::RecordPtr kept(const std::string& session) const { return catalog_.kept.find(SessionId{session}); }
  // The tokens of these messages as the model's template writes them.
  [[nodiscard]] std::vector<Token> written(const std::vector<ChatMessage>& messages,
                                           const chat::Conversation& conversation = {}) const {
    return chat::tokenize_chat(chat::ChatFormat(model_), conversation, messages).value().tokens;
  }

  testing::SimClock clock_;
  Duration step_takes_{};  // How far the clock advances in each step.
  FakeOptions options_;
  std::shared_ptr<const FakeModel> model_ = std::make_shared<FakeModel>(options_);
  testing::FakeCatalog catalog_;
  std::unique_ptr<kv::StateStore> store_ = std::make_unique<kv::StateStore>(kv::StoreOptions{}, nullptr, clock_);
  NamedModels source_;
  WorkPool work_;
  std::shared_ptr<image::ImageEncoder> encoder_;
  bool encoder_runs_ = true;  // False: the image encoder pauses.
  std::unique_ptr<Router> router_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  FakeContext* context_ = nullptr;  // The context of the last lane.
  std::unique_ptr<EmbedLane> embed_lane_;
  bool embed_lane_runs_ = true;  // False: the embedding lane pauses.
  RequestId last_id_{0};
};

}  // namespace uma::engine
