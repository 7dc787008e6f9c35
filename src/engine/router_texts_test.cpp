// Embeddings and reranking from the request to the reply, on a model without weights.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "engine/router/router.h"
#include "engine/router_test_support.h"
#include "engine/worker_source_test_support.h"
#include "testing/fake_embedding.h"
#include "testing/fake_model.h"
#include "testing/sim_clock.h"

namespace uma::engine {
namespace {

using testing::FakeModel;
using testing::FakeOptions;
using ::testing::HasSubstr;

class RouterTextsTest : public ::testing::Test {
 protected:
  RouterTextsTest() { init_log(LogLevel::error); }

  void start(Capability capability = Capability::text_embedding, Limits limits = {}) {
    capability_ = capability;
    RouterOptions options;
    options.limits = limits;
    router_ = std::make_unique<Router>(options, source_, catalog_, store_, preparer_, clock_);
  }
  void load() {
    FakeOptions options;
    options.capability = capability_;
    options.clock = &clock_;
    const auto model = std::make_shared<FakeModel>(options);
    auto context = model->new_embedding({}).value();
    const auto shape = context->shape();
    lane_ = std::make_unique<EmbedLane>(EmbedLaneOptions{}, std::move(context), clock_);
    router_->on_loaded(
        "fake", text_model(std::make_shared<const capability::TextEmbedder>(model, shape, std::map<std::string, std::string>()),
                           {lane_.get()}));
  }
  void settle(bool computes = true) {
    for (int quiet = 0; quiet < 3;) {
      bool worked = router_->step();
      worked |= preparer_.step();
      if (computes && lane_) worked |= lane_->step().did_work;
      router_->check_invariants();
      quiet = worked ? 0 : quiet + 1;
    }
  }
  static EmbedRequest request_of(std::vector<EmbedInput> inputs) {
    EmbedRequest request;
    request.inputs = std::move(inputs);
    return request;
  }
  RequestId embed(EmbedRequest request) {
    const RequestId id{++last_id_};
    router_->embeddings().embed(id, kTenant, std::move(request), [this](Expected<EmbedResult> result) {
      EXPECT_FALSE(embedded_) << "a second reply";
      embedded_ = std::move(result);
    });
    return id;
  }
  [[nodiscard]] const Error& refusal() const { return embedded_.value().error(); }

  testing::SimClock clock_;
  NamedModels source_;
  kv::MemoryCatalog catalog_;
  kv::StateStore store_{{}, nullptr, clock_};
  Preparer preparer_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<EmbedLane> lane_;
  Capability capability_ = Capability::text_embedding;
  std::uint64_t last_id_ = 0;
  std::optional<Expected<EmbedResult>> embedded_;
};

TEST_F(RouterTextsTest, TextsWaitForTheModelAndComeBackAsVectors) {
  start();
  (void)embed(request_of({"one", "another"}));
  settle();
  EXPECT_FALSE(embedded_);
  EXPECT_EQ(router_->requests_open(), 1);
  clock_.advance(std::chrono::minutes(10));  // of loading, which no deadline counts
  load();
  settle();
  ASSERT_TRUE(embedded_ && *embedded_) << refusal().message;
  EXPECT_EQ((*embedded_)->model, "fake");
  EXPECT_EQ((*embedded_)->count(), 2u);
  EXPECT_EQ((*embedded_)->tokens, 3 + 7 + 4);
  EXPECT_EQ(router_->requests_open(), 0);
  EXPECT_EQ(router_->waiting_since_us(), 0);
}

TEST_F(RouterTextsTest, DocumentsComeBackInOrder) {
  start(Capability::rerank);
  load();
  std::optional<Expected<RerankResult>> ranked;
  RerankRequest request{.options = {}, .query = "q", .documents = {"a", "b", "c"}, .top_n = 2};
  router_->embeddings().rerank({1}, kTenant, request, [&](Expected<RerankResult> result) { ranked = std::move(result); });
  settle();
  ASSERT_TRUE(ranked && *ranked);
  ASSERT_EQ((*ranked)->scores.size(), 2u);
  EXPECT_GE((*ranked)->scores[0].score, (*ranked)->scores[1].score);
}

TEST_F(RouterTextsTest, GenerationsAndSessionsAreRefused) {
  start();
  load();
  std::optional<Expected<SessionInfo>> session;
  router_->tasks().answer([&](Expected<SessionInfo> made) { session = std::move(made); },
                          router_->sessions().create(kTenant, {}));
  settle();
  EXPECT_EQ(session->error().code, ErrorCode::model_capability);
  EXPECT_THAT(session->error().message, HasSubstr("text_embedding"));
}

TEST_F(RouterTextsTest, BadRequestsAreRefused) {
  start(Capability::text_embedding, {.max_prompt_bytes = 100});
  load();
  EmbedRequest other = request_of({"a"});
  other.options.model = "other";
  (void)embed(other);
  settle();
  EXPECT_EQ(refusal().code, ErrorCode::model_unknown);
  embedded_.reset();
  (void)embed(request_of({std::string(60, 'a'), std::string(60, 'b')}));
  EXPECT_EQ(refusal().code, ErrorCode::limit_prompt);
  embedded_.reset();
  (void)embed(request_of({std::string(40, 'a')}));  // the model takes 32 tokens
  settle();
  EXPECT_EQ(refusal().code, ErrorCode::limit_prompt);
  EXPECT_EQ(router_->requests_refused(), 3u);
  EXPECT_EQ(router_->requests_open(), 0);
}

TEST_F(RouterTextsTest, AFailedLoadAnswersWhatWaits) {
  start();
  (void)embed(request_of({"a"}));
  router_->on_load_failed("fake", {ErrorCode::model_load, "no such file"});
  settle();
  EXPECT_EQ(refusal().code, ErrorCode::model_load);
}

TEST_F(RouterTextsTest, ACancelEndsThemWhereverTheyAre) {
  start();
  const auto cancel = [&](RequestId id) {
    bool found = false;
    found = router_->cancel(id);
    return found;
  };
  EXPECT_TRUE(cancel(embed(request_of({"a"}))));  // the model is loading
  EXPECT_EQ(refusal().code, ErrorCode::limit_wait);
  embedded_.reset();
  load();
  EXPECT_TRUE(cancel(embed(request_of({"a"}))));  // with the preparer
  EXPECT_EQ(refusal().code, ErrorCode::limit_wait);
  settle();
  embedded_.reset();
  const RequestId id = embed(request_of({"a"}));
  settle(/*computes=*/false);
  EXPECT_FALSE(embedded_);
  EXPECT_TRUE(cancel(id));  // in the lane
  settle();
  EXPECT_EQ(refusal().code, ErrorCode::limit_wait);
  EXPECT_EQ(lane_->stats().calls_total.value(), 0u);
  EXPECT_FALSE(cancel(id));
}

TEST_F(RouterTextsTest, DeadlinesAreOfTheClassUnlessGiven) {
  start();
  load();
  const auto after = [&](RequestClass request_class, std::optional<std::int64_t> deadline_ms, std::chrono::seconds waits) {
    embedded_.reset();
    EmbedRequest request = request_of({"a"});
    request.options.request_class = request_class;
    request.options.deadline_ms = deadline_ms;
    (void)embed(request);
    settle(/*computes=*/false);
    clock_.advance(waits);
    settle();
    return embedded_->has_value();
  };
  EXPECT_TRUE(after(RequestClass::interactive, std::nullopt, std::chrono::seconds(29)));
  EXPECT_FALSE(after(RequestClass::interactive, std::nullopt, std::chrono::seconds(31)));
  EXPECT_TRUE(after(RequestClass::background, std::nullopt, std::chrono::seconds(299)));
  EXPECT_FALSE(after(RequestClass::background, std::nullopt, std::chrono::seconds(301)));
  EXPECT_FALSE(after(RequestClass::background, 1000, std::chrono::seconds(2)));
  EXPECT_TRUE(after(RequestClass::interactive, 0, std::chrono::hours(2)));
}

TEST_F(RouterTextsTest, AModelStaysWhileItIsUsed) {
  start();
  load();
  EXPECT_TRUE(router_->usage().empty() || router_->usage().front().uses == 0);
  (void)embed(request_of({"a"}));
  settle(/*computes=*/false);
  EXPECT_FALSE(router_->retire("fake"));
  settle();
  ASSERT_TRUE(embedded_ && *embedded_);
  EXPECT_TRUE(router_->retire("fake"));
  embedded_.reset();
  (void)embed(request_of({"a"}));  // waits for another load
  settle();
  EXPECT_FALSE(embedded_);
  router_->on_retired("fake");
  load();
  settle();
  EXPECT_TRUE(embedded_ && *embedded_);
}

TEST_F(RouterTextsTest, ADrainTakesNoNewOnesAndTheEndAnswersAll) {
  start();
  load();
  (void)embed(request_of({"a"}));
  settle(/*computes=*/false);
  const auto waiting = std::exchange(embedded_, std::nullopt);
  EXPECT_FALSE(waiting);
  router_->drain();
  lane_->close();
  lane_->cancel_all();
  bool has_ended_all = false;
  router_->end_all([&] { has_ended_all = true; });
  EXPECT_FALSE(has_ended_all) << "what the lane has reported is on its way";
  settle();
  EXPECT_TRUE(has_ended_all);
  EXPECT_EQ(refusal().code, ErrorCode::limit_wait);
  embedded_.reset();
  (void)embed(request_of({"a"}));
  EXPECT_EQ(refusal().code, ErrorCode::limit_wait);
}

}  // namespace
}  // namespace uma::engine
