// The router with more models than one: what is loaded when, who waits for it, and when a model may go.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.h"
#include "engine/router/router.h"
#include "engine/router_test_support.h"
#include "engine/worker_source_test_support.h"
#include "testing/fake_model.h"
#include "testing/sim_clock.h"

namespace uma::engine {
namespace {

using testing::FakeContext;
using testing::FakeModel;
using testing::FakeOptions;

constexpr FakeOptions kSmallOptions{.cells = 1024, .sequences = 2};

struct StagesSink final : EventSink {
  bool deliver(const Event& event) override {
    if (const auto* progress = std::get_if<ProgressEvent>(&event)) stages.push_back(progress->stage);
    if (const auto* failure = std::get_if<FailureEvent>(&event)) error = failure->error;
    if (const auto* ended = std::get_if<EosEvent>(&event)) eos = *ended;
    return true;
  }
  std::vector<ProgressStage> stages;
  std::optional<Error> error;
  std::optional<EosEvent> eos;
};

class RouterModels : public ::testing::Test {
 protected:
  RouterModels() { init_log(LogLevel::error); }

  void on_loaded(const std::string& name) {
    auto& lane = lanes_[name];
    LaneOptions options;
    options.store = &store_;
    lane = std::make_unique<Lane>(
        std::move(options), std::make_unique<FakeContext>(kSmallOptions), nullptr, model_->vocab(), clock_,
        [this](GenerationResult result) {
          router_.post([this, result = std::move(result)]() mutable { router_.generations().on_result(std::move(result)); });
        });
    router_.on_loaded(name, chat_model(model_, {lane.get()}));
  }
  // As the engine does once the router has let go of the model.
  void free(const std::string& name) {
    lanes_.at(name)->close();
    lanes_.at(name)->cancel_all();
    lanes_.erase(name);
    router_.on_retired(name);
  }
  void settle() {
    for (int quiet = 0; quiet < 3;) {
      bool worked = router_.step();
      worked |= preparer_.step();
      for (const auto& [name, lane] : lanes_) worked |= lane->step().did_work;
      router_.check_invariants();
      quiet = worked ? 0 : quiet + 1;
    }
  }
  std::shared_ptr<StagesSink> generate(const std::string& model, const std::string& session = "", bool is_background = false) {
    GenerateRequest request;
    if (is_background) request.options.request_class = RequestClass::background;
    request.model = model;
    request.session = session;
    request.input.text = "hello";
    request.options.max_tokens = 5;
    request.options.progress = true;
    auto sink = std::make_shared<StagesSink>();
    router_.generations().start(RequestId{++last_request_}, kTenant, std::move(request), {sink});
    settle();
    return sink;
  }
  std::optional<Expected<SessionInfo>> create(const std::string& model, const std::string& name) {
    CreateSessionRequest request;
    request.model = model;
    request.name = name;
    request.mode = SessionMode::text;
    auto answer = std::make_shared<std::optional<Expected<SessionInfo>>>();
    router_.tasks().answer([answer](Expected<SessionInfo> made) { *answer = std::move(made); },
                           router_.sessions().create(kTenant, request));
    settle();
    return *answer;
  }
  void cancel_last() { (void)router_.cancel(RequestId{last_request_}); }

  testing::SimClock clock_;
  std::shared_ptr<const FakeModel> model_ = std::make_shared<FakeModel>(kSmallOptions);
  kv::MemoryCatalog catalog_;
  kv::StateStore store_{{.warm_bytes_max = 1 << 20}, nullptr, clock_};
  NamedModels source_{{"a", "b"}};
  Preparer preparer_;
  Router router_{{}, source_, catalog_, store_, preparer_, clock_};
  std::map<std::string, std::unique_ptr<Lane>> lanes_;
  std::uint64_t last_request_ = 0;
};

TEST_F(RouterModels, AModelIsAskedForOnceAndWhoWaitsIsServed) {
  const auto first = generate("");
  const auto second = generate("a");
  EXPECT_EQ(source_.wanted, std::vector<std::string>{"a"}) << "the default one is a";
  const auto other = generate("b");
  router_.on_load_progress("b", 0.5);
  on_loaded("a");
  settle();
  EXPECT_TRUE(first->eos && second->eos);
  EXPECT_FALSE(other->eos || other->error) << "one load does not wait for another";
  EXPECT_TRUE(std::ranges::contains(other->stages, ProgressStage::loading));
  EXPECT_FALSE(std::ranges::contains(first->stages, ProgressStage::loading)) << "it is not its model";
  on_loaded("b");
  settle();
  EXPECT_TRUE(other->eos);
  EXPECT_TRUE(generate("b")->eos);
  EXPECT_EQ(source_.wanted, (std::vector<std::string>{"a", "b"}));
}

TEST_F(RouterModels, BackgroundRequestsForAHeldModelWaitAndOthersDoNot) {
  generate("a");
  on_loaded("a");
  settle();
  router_.hold_background("a", true);
  const auto held = generate("a", "", true);
  EXPECT_FALSE(held->eos || held->error);
  EXPECT_TRUE(generate("a")->eos);
  router_.hold_background("a", false);
  settle();
  EXPECT_TRUE(held->eos);

  router_.hold_background("a", true);
  const auto cancelled = generate("a", "", true);
  cancel_last();
  settle();
  EXPECT_EQ(cancelled->eos.value().reason, FinishReason::cancelled);
  const auto next = generate("a", "", true);
  const auto usage = router_.usage().front();
  EXPECT_EQ(usage.uses, 0) << "who waits does not use it";
  EXPECT_EQ(usage.background_waiting, 1);
  ASSERT_TRUE(router_.retire("a"));
  free("a");
  settle();
  EXPECT_EQ(source_.wanted, (std::vector<std::string>{"a", "a"})) << "it is wanted still";
  on_loaded("a");
  router_.hold_background("a", false);
  settle();
  EXPECT_TRUE(next->eos);
}

TEST_F(RouterModels, AnUnknownModelIsRefusedAtOnce) {
  EXPECT_EQ(generate("c")->error.value().code, ErrorCode::model_unknown);
  EXPECT_TRUE(source_.wanted.empty());
}

TEST_F(RouterModels, ASessionIsOfOneModel) {
  on_loaded("a");
  on_loaded("b");
  ASSERT_TRUE(create("b", "s").value());
  EXPECT_TRUE(generate("", "s")->eos) << "no model is named: its own";
  EXPECT_TRUE(generate("b", "s")->eos);
  EXPECT_EQ(generate("a", "s")->error.value().code, ErrorCode::proto_field);
  EXPECT_EQ(lanes_.at("b")->stats().tokens_total.value(), 10u);
  EXPECT_EQ(lanes_.at("a")->stats().tokens_total.value(), 0u);
}

TEST_F(RouterModels, ModelsDoNotShareWhatTheyHaveComputed) {
  on_loaded("a");
  ASSERT_TRUE(create("a", "s").value());
  EXPECT_EQ(generate("", "s")->eos.value().usage.reused_tokens, 0);
  EXPECT_GT(generate("", "s")->eos.value().usage.reused_tokens, 0);
}

TEST_F(RouterModels, OnlyWhatNobodyUsesIsRetired) {
  EXPECT_FALSE(router_.retire("a")) << "it was never loaded";
  on_loaded("a");
  GenerateRequest request;
  request.input.text = "hello";
  auto running = std::make_shared<StagesSink>();
  router_.generations().start(RequestId{++last_request_}, kTenant, std::move(request), {running});
  EXPECT_FALSE(router_.retire("a")) << "a request is under way";
  settle();
  ASSERT_TRUE(running->eos);
  EXPECT_TRUE(router_.retire("a"));
  EXPECT_FALSE(router_.retire("a")) << "it is leaving";

  const auto waits = generate("a");
  EXPECT_TRUE(source_.wanted.empty()) << "it is loaded again when the old one is gone";
  free("a");
  EXPECT_EQ(source_.wanted, std::vector<std::string>{"a"});
  on_loaded("a");
  settle();
  EXPECT_TRUE(waits->eos);
}

TEST_F(RouterModels, ASessionOutlivesItsModel) {
  on_loaded("a");
  ASSERT_TRUE(create("", "s").value());
  const std::string long_text(200, 'x');
  for (int turn = 0; turn < 2; ++turn) {
    router_.tasks().answer([](const auto&) {},
                           router_.sessions().append(kTenant, {.session = "s", .input = {.text = long_text, .messages = {}}}));
    settle();
    ASSERT_TRUE(generate("", "s")->eos);
  }
  ASSERT_TRUE(router_.retire("a"));
  free("a");
  const auto again = generate("", "s");
  EXPECT_EQ(source_.wanted, std::vector<std::string>{"a"});
  on_loaded("a");
  settle();
  EXPECT_EQ(again->eos.value().usage.tier, Tier::warm) << "what the model's lanes had computed went to the store";
  EXPECT_GT(again->eos->usage.reused_tokens, 400);
}

TEST_F(RouterModels, ALoadThatNobodyWaitsForIsEnded) {
  const auto first = generate("a");
  const std::uint64_t first_id = last_request_;
  const auto second = generate("a");
  cancel_last();
  EXPECT_TRUE(source_.cancelled.empty()) << "another waits";
  EXPECT_TRUE(router_.cancel(RequestId{first_id}));
  EXPECT_EQ(source_.cancelled, std::vector<std::string>{"a"});
  EXPECT_EQ(first->eos.value().reason, FinishReason::cancelled);

  // Somebody wants it again before the load has come to its end.
  const auto third = generate("a");
  router_.on_load_failed("a", {ErrorCode::model_load, "cancelled"});
  EXPECT_FALSE(third->error);
  EXPECT_EQ(source_.wanted, (std::vector<std::string>{"a", "a"}));
  on_loaded("a");
  settle();
  EXPECT_TRUE(third->eos);
}

TEST_F(RouterModels, ALoadThatFailedIsTriedAgainAfterAWhile) {
  const auto first = generate("a");
  router_.on_load_failed("a", {ErrorCode::model_load, "no memory"});
  settle();
  EXPECT_EQ(first->error.value().code, ErrorCode::model_load);
  EXPECT_EQ(generate("a")->error.value().message, "no memory");
  EXPECT_EQ(source_.wanted.size(), 1u) << "not at once";
  clock_.advance(std::chrono::minutes(1));
  const auto later = generate("a");
  EXPECT_EQ(source_.wanted.size(), 2u);
  on_loaded("a");
  settle();
  EXPECT_TRUE(later->eos);
}

TEST_F(RouterModels, TellsWhoUsesWhat) {
  on_loaded("a");
  clock_.advance(std::chrono::seconds(7));
  (void)generate("b");
  std::map<std::string, ModelUsage> usages;
  for (ModelUsage& usage : router_.usage()) usages[usage.name] = usage;
  EXPECT_TRUE(usages.at("a").is_loaded);
  EXPECT_EQ(usages.at("a").uses, 0);
  EXPECT_DOUBLE_EQ(usages.at("a").idle_s, 7);
  EXPECT_FALSE(usages.at("b").is_loaded);
  EXPECT_EQ(usages.at("b").waiting, 1);
}

}  // namespace
}  // namespace uma::engine
