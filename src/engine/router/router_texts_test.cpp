// Embeddings and reranking from request to reply, on a model without weights.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine_test_support.h"
#include "testing/fake_embedding.h"

namespace uma::engine {
namespace {

using ::testing::HasSubstr;

class RouterTextsTest : public ::testing::Test, protected EngineBench {
 protected:
  RouterTextsTest() : EngineBench({}) {}

  void start(Capability capability = Capability::text_embedding, Limits limits = {}) {
    options_.capability = capability;
    options_.clock = &clock_;
    model_ = std::make_shared<FakeModel>(options_);
    start_router({.limits = limits});
  }
  void load() {
    auto context = model_->new_embedding({}).value();
    const auto shape = context->shape();
    embed_lane_ = std::make_unique<EmbedLane>(EmbedLaneOptions{}, std::move(context), clock_);
    router_->on_loaded(
        "fake", text_model(std::make_shared<const llm::TextEmbedder>(model_, shape, std::map<std::string, std::string>()),
                           {embed_lane_.get()}));
  }
  // Runs everything except the lane.
  void settle_without_computing() {
    embed_lane_runs_ = false;
    settle();
    embed_lane_runs_ = true;
  }
  static EmbedRequest request_of(std::vector<EmbedInput> inputs) {
    EmbedRequest request;
    request.inputs = std::move(inputs);
    return request;
  }
  RequestId embed(EmbedRequest request) {
    last_id_.value += 1;
    router_->embeddings().embed(last_id_, kTenant, std::move(request), [this](Expected<EmbedResult> result) {
      EXPECT_FALSE(embedded_) << "a second reply";
      embedded_ = std::move(result);
    });
    return last_id_;
  }
  [[nodiscard]] const Error& refusal() const { return embedded_.value().error(); }

  std::optional<Expected<EmbedResult>> embedded_;
};

TEST_F(RouterTextsTest, TextsWaitForTheModelAndComeBackAsVectors) {
  start();
  (void)embed(request_of({"one", "another"}));
  settle();
  EXPECT_FALSE(embedded_);
  EXPECT_EQ(router_->requests_open(), 1);
  clock_.advance(std::chrono::minutes(10));  // Time of loading, which does not count for deadlines.
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
  const auto session = create({});
  EXPECT_EQ(session.error().code, ErrorCode::model_capability);
  EXPECT_THAT(session.error().message, HasSubstr("text_embedding"));
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
  (void)embed(request_of({std::string(40, 'a')}));  // The model accepts 32 tokens.
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
  EXPECT_TRUE(router_->cancel(embed(request_of({"a"}))));  // The model is loading.
  EXPECT_EQ(refusal().code, ErrorCode::limit_wait);
  embedded_.reset();
  load();
  EXPECT_TRUE(router_->cancel(embed(request_of({"a"}))));  // The preparer has it.
  EXPECT_EQ(refusal().code, ErrorCode::limit_wait);
  settle();
  embedded_.reset();
  const RequestId id = embed(request_of({"a"}));
  settle_without_computing();
  EXPECT_FALSE(embedded_);
  EXPECT_TRUE(router_->cancel(id));  // The lane has it.
  settle();
  EXPECT_EQ(refusal().code, ErrorCode::limit_wait);
  EXPECT_EQ(embed_lane_->stats().calls_total.value(), 0u);
  EXPECT_FALSE(router_->cancel(id));
}

TEST_F(RouterTextsTest, DeadlinesAreOfTheClassUnlessGiven) {
  start(Capability::text_embedding, {.deadline_ms = 30'000});
  load();
  const auto after = [&](RequestClass request_class, std::optional<std::int64_t> deadline_ms, std::chrono::seconds waits) {
    embedded_.reset();
    EmbedRequest request = request_of({"a"});
    request.options.request_class = request_class;
    request.options.deadline_ms = deadline_ms;
    (void)embed(request);
    settle_without_computing();
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
  settle_without_computing();
  EXPECT_FALSE(router_->retire("fake"));
  settle();
  ASSERT_TRUE(embedded_ && *embedded_);
  EXPECT_TRUE(router_->retire("fake"));
  embedded_.reset();
  (void)embed(request_of({"a"}));  // Waits for another load.
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
  settle_without_computing();
  const auto waiting = std::exchange(embedded_, std::nullopt);
  EXPECT_FALSE(waiting);
  router_->drain();
  embed_lane_->close();
  embed_lane_->cancel_all();
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
