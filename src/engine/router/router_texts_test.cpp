// Embeddings and reranking from request to reply, on a model without weights.
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/move_only_function.h"
#include "engine/engine_test_support.h"
#include "testing/fake_embedding.h"
#include "testing/image_bytes.h"

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
  EXPECT_TRUE(router_->cancel(embed(request_of({"a"}))));  // The pool has it.
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

// A model that embeds texts and images, which it writes with its chat template.
class RouterImageVectorsTest : public RouterTextsTest {
 protected:
  void serve(bool is_shared = true) {
    options_.capability = Capability::text_embedding;
    options_.has_chat_template = true;
    options_.clock = &clock_;
    model_ = std::make_shared<FakeModel>(options_);
    start_router({});
    encoder_ = std::make_shared<image::ImageEncoder>(
        std::make_unique<testing::FakeProjector>(),
        image::ImageEncoderOptions{.allowed_dirs = {}, .cache_bytes_max = 1000, .kept = nullptr}, clock_);
    testing::FakeEmbeddingOptions embedding;
    embedding.shape = {.text_tokens_max = 64, .batch_rows_max = 64, .batch_texts_max = 4, .dimensions = 4};
    embedding.shape.reads_images = is_shared;
    embedding.shape.image_rows_max = 8;
    EmbedLaneOptions lane;
    lane.encode = [encoder = encoder_](const TenantId& tenant, const std::string& image, std::stop_token stop,
                                       MoveOnlyFunction<void(Expected<image::EncodedPtr>)> then) {
      encoder->post(tenant, [encoder, tenant, image, stop = std::move(stop), then = std::move(then)]() mutable {
        then(encoder->encode(tenant, image, stop));
      });
    };
    embed_lane_ = std::make_unique<EmbedLane>(std::move(lane), std::make_unique<testing::FakeEmbedding>(embedding), clock_);
    auto embedder = std::make_shared<const llm::TextEmbedder>(model_, embedding.shape, std::map<std::string, std::string>(),
                                                              input_format(model_, embedding.shape, encoder_, {}));
    router_->on_loaded("fake", text_model(std::move(embedder), {embed_lane_.get()}, encoder_));
  }
  RequestId embed_images(std::vector<ImageSource> images) {
    last_id_.value += 1;
    router_->embeddings().embed_images(last_id_, kTenant, {.options = {}, .images = std::move(images)},
                                       [this](Expected<ImageEmbeddings> made) {
                                         EXPECT_FALSE(made_) << "a second reply";
                                         made_ = std::move(made);
                                       });
    return last_id_;
  }
  static EmbedRequest with_image(std::string text, std::size_t at, char colour = 'a') {
    EmbedRequest request = request_of({std::move(text)});
    request.images.push_back({.message = 0, .at = at, .source = testing::image_of_one_pixel(colour)});
    return request;
  }
  std::vector<float> vector_of(EmbedRequest request) {
    embedded_.reset();
    (void)embed(std::move(request));
    settle();
    EXPECT_TRUE(embedded_ && *embedded_);
    const auto vector = (*embedded_)->vector(0);
    return {vector.begin(), vector.end()};
  }

  std::optional<Expected<ImageEmbeddings>> made_;
};

TEST_F(RouterImageVectorsTest, AnImageAloneIsTheSameByBothCommands) {
  serve();
  const auto alone = vector_of(with_image("", 0));
  (void)embed_images({testing::image_of_one_pixel('b'), testing::image_of_one_pixel('a')});
  settle();
  ASSERT_TRUE(made_ && *made_);
  ASSERT_EQ((*made_)->embeddings.size(), 2u);
  EXPECT_EQ((*made_)->embeddings[1], alone);
  EXPECT_NE((*made_)->embeddings[0], alone);
  EXPECT_GT((*made_)->rows, 2 * 5);
  EXPECT_EQ(encoder_->stats().images_encoded_total.value(), 2u);
  EXPECT_EQ(router_->requests_open(), 0);
}

TEST_F(RouterImageVectorsTest, ThePlaceOfAnImageInATextCounts) {
  serve();
  const auto first = vector_of(with_image("ab", 0));
  EXPECT_EQ(vector_of(with_image("ab", 0)), first);
  EXPECT_NE(vector_of(with_image("ab", 1)), first);
  EXPECT_NE(vector_of(with_image("ab", 0, 'b')), first);
  EXPECT_NE(vector_of(request_of({"ab"})), first);
}

TEST_F(RouterImageVectorsTest, ATextAloneIsWrittenWithTheTemplateToo) {
  serve();
  (void)embed(request_of({"ab", std::vector<Token>{5, 6}}));
  settle();
  ASSERT_TRUE(embedded_ && *embedded_);
  // BOS, <|im_start|>user, a line, two letters, <|im_end|>, a line, <|im_start|>assistant, a line, EOS; and two tokens.
  EXPECT_EQ((*embedded_)->tokens, 1 + 6 + 2 + 2 + 11 + 1 + 2);
}

TEST_F(RouterImageVectorsTest, ImagesThatCannotBeReadAreRefused) {
  serve();
  EmbedRequest request = with_image("a", 0);
  request.images[0].source.text = "bm90aGluZw==";
  request.images[0].field = "input[0]";
  (void)embed(std::move(request));
  settle();
  EXPECT_EQ(refusal().code, ErrorCode::proto_field);
  EXPECT_THAT(refusal().message, HasSubstr("input[0]"));
  (void)embed_images({testing::image_of_one_pixel(), {.text = "bm90aGluZw=="}});
  settle();
  EXPECT_THAT(made_.value().error().message, HasSubstr("images[1]"));
  EXPECT_EQ(router_->requests_open(), 0);
}

TEST_F(RouterImageVectorsTest, AnInputThatIsTooLongIsRefusedWithNumbers) {
  serve();
  (void)embed(with_image(std::string(50, 'a'), 0));
  settle();
  EXPECT_EQ(refusal().code, ErrorCode::limit_prompt);
  EXPECT_THAT(refusal().message, HasSubstr("the limit of the model is 64"));
  EXPECT_EQ(encoder_->stats().images_encoded_total.value(), 0u);
}

TEST_F(RouterImageVectorsTest, ACancelEndsTheEncoding) {
  serve();
  encoder_runs_ = false;
  const RequestId reading = embed_images({testing::image_of_one_pixel()});
  settle();
  EXPECT_TRUE(router_->cancel(reading));
  settle();
  EXPECT_EQ(made_.value().error().code, ErrorCode::limit_wait);
  made_.reset();
  const RequestId waiting = embed_images({testing::image_of_one_pixel()});
  (void)router_->step();
  while (embed_lane_->stats().queue_depth.value() == 0) {
    (void)encoder_->step();
    settle();
  }
  settle();  // The lane waits for the encoding.
  EXPECT_FALSE(made_);
  EXPECT_TRUE(router_->cancel(waiting));
  settle();
  EXPECT_EQ(made_.value().error().code, ErrorCode::limit_wait);
  encoder_runs_ = true;
  settle();
  EXPECT_EQ(encoder_->stats().images_encoded_total.value(), 0u);
}

TEST_F(RouterImageVectorsTest, AProjectorAloneGivesVectorsOfImagesOnly) {
  serve(false);
  (void)embed_images({testing::image_of_one_pixel()});
  settle();
  ASSERT_TRUE(made_ && *made_);
  EXPECT_EQ((*made_)->embeddings[0].size(), 2u) << "the projector's width";
  EXPECT_EQ(vector_of(request_of({"a"})).size(), 4u);
  embedded_.reset();
  (void)embed(with_image("a", 0));
  settle();
  EXPECT_EQ(refusal().code, ErrorCode::model_capability);
  EXPECT_THAT(refusal().message, HasSubstr("image_vectors"));
}

TEST_F(RouterTextsTest, AModelWithoutAProjectorReadsNoImages) {
  start();
  load();
  EmbedRequest request = request_of({"a"});
  request.images.push_back({.message = 0, .at = 0, .source = testing::image_of_one_pixel()});
  (void)embed(std::move(request));
  settle();
  EXPECT_EQ(refusal().code, ErrorCode::model_capability);
  EXPECT_THAT(refusal().message, HasSubstr("reads no images"));
}

}  // namespace
}  // namespace uma::engine
