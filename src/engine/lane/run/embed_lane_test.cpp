#include "engine/lane/run/embed_lane.h"

#include <atomic>
#include <format>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "base/move_only_function.h"
#include "base/random.h"
#include "llm/media/image_tokens.h"
#include "testing/fake_embedding.h"
#include "testing/fake_model.h"
#include "testing/sim_clock.h"

namespace uma::engine {
namespace {

using ::testing::ElementsAre;
using testing::fake_output;
using testing::FakeEmbedding;
using testing::FakeEmbeddingOptions;
using testing::SimClock;
using Result = Expected<std::vector<float>>;

std::vector<Token> text_of_token(Token token, std::size_t size = 4) {
  return std::vector<Token>(size, token);
}

class EmbedLaneTest : public ::testing::Test {
 protected:
  EmbedLaneTest() { init_log(LogLevel::error); }

  void start(EmbedLaneOptions options = {}, FakeEmbeddingOptions embedding = {}) {
    embedding.clock = &clock_;
    auto context = std::make_unique<FakeEmbedding>(embedding);
    context_ = context.get();
    context_->on_compute = [this](std::span<const FakeEmbedding::Text> texts) {
      std::vector<Token>& call = calls_.emplace_back();
      for (const auto& text : texts) call.push_back(text.front());
      if (in_call_) in_call_();
    };
    lane_ = std::make_unique<EmbedLane>(std::move(options), std::move(context), clock_);
  }
  EmbedTask task(std::uint64_t id, const std::vector<std::vector<Token>>& texts, sched::Flow flow = {.tenant = "a"}) {
    EmbedTask made{.id = {id}, .texts = {}, .flow = std::move(flow), .received = clock_.now(), .done = nullptr};
    for (std::size_t i = 0; i < texts.size(); ++i) made.texts.add(texts[i], i);
    wanted_[id] = texts;
    made.done = [this, id](const llm::EmbedTexts&, Result result) {
      EXPECT_TRUE(results_.emplace(id, std::move(result)).second) << "a second result of " << id;
    };
    return made;
  }
  void run() {
    while (lane_->step().did_work) {
    }
  }
  // Expects the outputs of the request's own texts.
  void expect_whole(std::uint64_t id) {
    ASSERT_TRUE(results_.contains(id)) << id;
    ASSERT_TRUE(results_.at(id)) << results_.at(id).error().message;
    std::vector<float> outputs;
    for (const auto& text : wanted_.at(id)) {
      const auto output = fake_output(text, context_->shape().dimensions);
      outputs.insert(outputs.end(), output.begin(), output.end());
    }
    EXPECT_EQ(*results_.at(id), outputs);
  }
  [[nodiscard]] ErrorCode error_of(std::uint64_t id) { return results_.at(id).error().code; }

  SimClock clock_;
  FakeEmbedding* context_ = nullptr;
  std::unique_ptr<EmbedLane> lane_;
  std::map<std::uint64_t, std::vector<std::vector<Token>>> wanted_;
  std::map<std::uint64_t, Result> results_;
  std::vector<std::vector<Token>> calls_;  // The first tokens of the texts of each call.
  std::function<void()> in_call_;
};

TEST_F(EmbedLaneTest, TextsOfManyRequestsShareACall) {
  start();
  lane_->post(task(1, {text_of_token(1)}));
  lane_->post(task(2, {text_of_token(2), text_of_token(3)}));
  EXPECT_EQ(lane_->stats().queue_depth.value(), 2);
  EXPECT_TRUE(lane_->step().did_work);
  EXPECT_EQ(calls_.size(), 1u);
  expect_whole(1);
  expect_whole(2);
  EXPECT_FALSE(lane_->step().did_work);
  EXPECT_EQ(lane_->stats().queue_depth.value(), 0);
  EXPECT_EQ(lane_->stats().queue_bytes.value(), 0);
  EXPECT_EQ(lane_->stats().texts_total.value(), 3u);
}

TEST_F(EmbedLaneTest, TextsBeyondACallAreABacklogOfSeveralRequests) {
  start();
  const auto limit = static_cast<std::size_t>(lane_->shape().batch_texts_max);
  lane_->post(task(1, std::vector(limit + 1, text_of_token(1))));
  EXPECT_EQ(lane_->backlog(), 0) << "another worker could not help";
  lane_->post(task(2, {text_of_token(2), text_of_token(3)}));
  EXPECT_EQ(lane_->backlog(), 3);
  EXPECT_TRUE(lane_->step().did_work);
  EXPECT_EQ(lane_->backlog(), 0);
}

TEST_F(EmbedLaneTest, ALostDeviceEndsEveryRequest) {
  std::atomic<bool> lost = false;
  int told = 0;
  EmbedLaneOptions options;
  options.on_lost = [&] { ++told; };
  start(std::move(options), {.lost = &lost});
  lane_->post(task(1, std::vector<std::vector<Token>>(100, text_of_token(1))));
  lane_->post(task(2, {text_of_token(2)}));
  EXPECT_TRUE(lane_->step().did_work);
  expect_whole(2);
  in_call_ = [&] { lost = true; };
  const std::size_t calls = calls_.size();
  run();
  EXPECT_EQ(calls_.size(), calls + 1) << "no text is tried alone";
  EXPECT_EQ(error_of(1), ErrorCode::runtime_decode);
  lane_->post(task(3, {text_of_token(3)}));
  run();
  EXPECT_EQ(error_of(3), ErrorCode::runtime_decode);
  EXPECT_EQ(told, 1);
  EXPECT_EQ(lane_->stats().queue_depth.value(), 0);
}

TEST_F(EmbedLaneTest, CallsKeepTheBoundsOfTheContext) {
  FakeEmbeddingOptions embedding;
  embedding.shape.batch_rows_max = 40;
  embedding.shape.batch_texts_max = 5;
  start({}, embedding);
  std::vector<std::vector<Token>> texts;
  for (Token i = 0; i < 30; ++i) texts.push_back(text_of_token(i, 1 + static_cast<std::size_t>(i)));
  lane_->post(task(1, texts));
  run();
  expect_whole(1);
  EXPECT_GE(lane_->stats().calls_total.value(), 30u * 31 / 2 / 40) << "the context checks the bounds of each call";
}

TEST_F(EmbedLaneTest, OneTextDoesNotWaitForAThousand) {
  start();
  lane_->post(task(1, std::vector<std::vector<Token>>(1000, text_of_token(1)), {.tenant = "a", .client = 1}));
  EXPECT_TRUE(lane_->step().did_work);
  lane_->post(task(2, {text_of_token(2)}, {.tenant = "a", .client = 2}));
  lane_->post(task(3, {text_of_token(3)}, {.tenant = "a", .client = 1}));  // Another request of the same client.
  EXPECT_TRUE(lane_->step().did_work);
  expect_whole(2);
  expect_whole(3);
  EXPECT_FALSE(results_.contains(1));
  run();
  expect_whole(1);
}

TEST_F(EmbedLaneTest, TenantsShareTheCallsByWork) {
  FakeEmbeddingOptions embedding;
  embedding.shape.batch_rows_max = 16;
  start({}, embedding);
  // Four clients of one tenant and one of another, which gets half of the work.
  for (std::uint64_t i = 1; i <= 4; ++i) {
    lane_->post(task(i, std::vector<std::vector<Token>>(40, text_of_token(1)), {.tenant = "many", .client = i}));
  }
  lane_->post(task(5, std::vector<std::vector<Token>>(40, text_of_token(2)), {.tenant = "one", .client = 9}));
  for (int i = 0; i < 10; ++i) (void)lane_->step();
  std::map<Token, int> served;
  for (const auto& call : calls_) {
    for (const Token token : call) ++served[token];
  }
  EXPECT_EQ(served[1], 20);
  EXPECT_EQ(served[2], 20);
}

TEST_F(EmbedLaneTest, BackgroundTakesTheRoomThatOthersLeave) {
  FakeEmbeddingOptions embedding;
  embedding.shape.batch_rows_max = 12;
  start({}, embedding);
  EmbedTask background = task(1, {text_of_token(1), text_of_token(1), text_of_token(1)});
  background.is_background = true;
  lane_->post(std::move(background));
  lane_->post(task(2, {text_of_token(2), text_of_token(2)}));
  run();
  EXPECT_THAT(calls_, ElementsAre(ElementsAre(2, 2, 1), ElementsAre(1, 1)));
  expect_whole(1);
  expect_whole(2);
}

TEST_F(EmbedLaneTest, ARequestEndsAtItsDeadline) {
  start();
  EmbedTask late = task(1, {text_of_token(1)});
  late.deadline = clock_.now() + std::chrono::seconds(30);
  lane_->post(std::move(late));
  lane_->post(task(2, {text_of_token(2)}));
  clock_.advance(std::chrono::seconds(31));
  run();
  ASSERT_FALSE(results_.at(1));
  EXPECT_EQ(error_of(1), ErrorCode::limit_wait);
  EXPECT_THAT(calls_, ElementsAre(ElementsAre(2)));
  expect_whole(2);
  EXPECT_EQ(lane_->stats().requests_failed_total.value(), 1u);
}

TEST_F(EmbedLaneTest, WhatIsCancelledIsNotComputed) {
  start();
  lane_->post(task(1, {text_of_token(1)}));
  lane_->post(task(2, {text_of_token(2)}));
  lane_->cancel({1});
  lane_->cancel({7});  // No such request.
  run();
  EXPECT_EQ(error_of(1), ErrorCode::limit_wait);
  EXPECT_THAT(calls_, ElementsAre(ElementsAre(2)));
  EXPECT_EQ(lane_->stats().requests_cancelled_total.value(), 1u);
  EXPECT_EQ(lane_->stats().queue_depth.value(), 0);
}

TEST_F(EmbedLaneTest, ACancelInterruptsACallThatIsItsOwn) {
  start();
  lane_->post(task(1, {text_of_token(1), text_of_token(1)}));
  in_call_ = [this] { lane_->cancel({1}); };
  run();
  EXPECT_EQ(error_of(1), ErrorCode::limit_wait);
  EXPECT_EQ(calls_.size(), 1u);
  EXPECT_EQ(lane_->stats().calls_total.value(), 0u);
}

TEST_F(EmbedLaneTest, ACancelDoesNotInterruptWhatOthersShare) {
  start();
  lane_->post(task(1, {text_of_token(1)}));
  lane_->post(task(2, {text_of_token(2)}));
  in_call_ = [this] { lane_->cancel({1}); };
  run();
  EXPECT_EQ(calls_.size(), 1u);
  expect_whole(1);  // Its result came before the cancel.
  expect_whole(2);
}

TEST_F(EmbedLaneTest, ATextThatFailsEndsItsOwnRequestOnly) {
  start();
  context_->fails = [](FakeEmbedding::Text text) { return text.front() == 13; };
  lane_->post(task(1, {text_of_token(1), text_of_token(2)}));
  lane_->post(task(2, {text_of_token(3), text_of_token(13), text_of_token(4)}));
  lane_->post(task(3, {text_of_token(5)}));
  run();
  expect_whole(1);
  expect_whole(3);
  EXPECT_EQ(error_of(2), ErrorCode::runtime_decode);
  EXPECT_EQ(lane_->stats().requests_failed_total.value(), 1u);
}

TEST_F(EmbedLaneTest, CallsAreShortWhileOthersStream) {
  bool has_streams = false;
  FakeEmbeddingOptions embedding;
  embedding.shape.batch_rows_max = 64;
  embedding.call_cost = {};
  embedding.row_cost = std::chrono::milliseconds(1);
  start({.has_streams = [&] { return has_streams; }}, embedding);
  lane_->post(task(1, std::vector<std::vector<Token>>(64, text_of_token(1))));
  EXPECT_TRUE(lane_->step().did_work);
  EXPECT_EQ(calls_.back().size(), 16u);  // The maximum: 64 rows.
  has_streams = true;
  EXPECT_TRUE(lane_->step().did_work);
  EXPECT_EQ(calls_.back().size(), 12u);  // 48 rows, 48 ms
  has_streams = false;
  run();
  expect_whole(1);
}

TEST_F(EmbedLaneTest, ATextThatIsLongerThanACallMayTakeIsComputedAlone) {
  FakeEmbeddingOptions embedding;
  embedding.row_cost = std::chrono::seconds(1);
  start({.has_streams = [] { return true; }}, embedding);
  lane_->post(task(1, {text_of_token(1, 32), text_of_token(2, 32), text_of_token(3, 32)}));
  run();
  expect_whole(1);
  EXPECT_EQ(calls_.back().size(), 1u);
}

TEST_F(EmbedLaneTest, SharesTheThreadsWithOthers) {
  const auto workers = std::make_shared<BusyWorkers>(4);
  workers->add(1);  // Another worker.
  start({.threads = 4, .workers = workers});
  lane_->post(task(1, {text_of_token(1)}));
  run();
  EXPECT_EQ(context_->threads(), 2);
  EXPECT_EQ(workers->part_of(4), 4) << "it idles, and does not count";
  workers->add(-1);
  lane_->post(task(2, {text_of_token(1)}));
  run();
  EXPECT_EQ(context_->threads(), 4);
  EXPECT_EQ(lane_->stats().threads.value(), 4);
}

TEST_F(EmbedLaneTest, TheEndOfTheLaneEndsWhatIsLeft) {
  start();
  lane_->post(task(1, std::vector<std::vector<Token>>(100, text_of_token(1))));
  lane_->post(task(2, {text_of_token(2)}));
  in_call_ = [this] { lane_->close(); };
  EXPECT_TRUE(lane_->step().did_work);
  EXPECT_TRUE(lane_->is_closed());
  EXPECT_TRUE(results_.empty());  // The call was interrupted.
  lane_->cancel_all();
  EXPECT_EQ(error_of(1), ErrorCode::limit_wait);
  EXPECT_EQ(error_of(2), ErrorCode::limit_wait);
}

TEST_F(EmbedLaneTest, SaysSinceWhenSomebodyWaits) {
  start();
  clock_.advance(std::chrono::seconds(5));
  lane_->post(task(1, std::vector<std::vector<Token>>(40, text_of_token(1))));
  context_->fails = [](FakeEmbedding::Text) { return false; };
  (void)lane_->step();
  EXPECT_EQ(lane_->stats().waiting_since_us.value(), 0);  // A text of it is computed.
  lane_->post(task(2, {text_of_token(2)}));
  const TimePoint received = clock_.now();
  in_call_ = [this] { lane_->close(); };
  (void)lane_->step();
  EXPECT_EQ(lane_->stats().waiting_since_us.value(), to_us(received));
  lane_->cancel_all();
}

// For any order of commands, each request has exactly one result, which is made of its own texts.
TEST_F(EmbedLaneTest, EveryRequestHasOneResultOfItsOwnTexts) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Random random(seed);
    results_.clear();
    wanted_.clear();
    start({.has_streams = [&] { return random.next_u64() % 2 == 0; }});
    context_->fails = [](FakeEmbedding::Text text) { return text.front() % 97 == 96; };
    in_call_ = [&] {
      if (random.next_u64() % 4 == 0) lane_->cancel({1 + random.next_u64() % 40});
    };
    std::uint64_t id = 0;
    while (id < 40 || results_.size() < 40) {
      if (id < 40 && random.next_u64() % 2 == 0) {
        std::vector<std::vector<Token>> texts(1 + random.next_u64() % 20);
        for (auto& text : texts) {
          text = text_of_token(static_cast<Token>(random.next_u64() % 1000), 1 + random.next_u64() % 32);
        }
        EmbedTask made = task(++id, texts, {.tenant = random.next_u64() % 2 == 0 ? "a" : "b", .client = random.next_u64() % 3});
        made.is_background = random.next_u64() % 4 == 0;
        if (random.next_u64() % 5 == 0) made.deadline = clock_.now() + std::chrono::milliseconds(random.next_u64() % 100);
        lane_->post(std::move(made));
      }
      (void)lane_->step();
    }
    for (std::uint64_t each = 1; each <= 40; ++each) {
      if (results_.at(each)) expect_whole(each);
    }
    EXPECT_EQ(lane_->stats().queue_depth.value(), 0) << "seed " << seed;
    EXPECT_EQ(lane_->stats().queue_bytes.value(), 0) << "seed " << seed;
    EXPECT_EQ(lane_->stats().queue_texts.value(), 0) << "seed " << seed;
    EXPECT_FALSE(lane_->step().did_work);
  }
}

// Encodes when the test says so.
class EmbedLaneImagesTest : public EmbedLaneTest {
 protected:
  struct Asked {
    TenantId tenant;
    std::string image;
    std::stop_token end;
    MoveOnlyFunction<void(Expected<image::EncodedPtr>)> then;
  };

  void begin() {
    EmbedLaneOptions options;
    options.encode = [this](const TenantId& tenant, const std::string& image, std::stop_token end,
                            MoveOnlyFunction<void(Expected<image::EncodedPtr>)> then) {
      asked_.push_back({tenant, image, std::move(end), std::move(then)});
    };
    FakeEmbeddingOptions embedding;
    embedding.shape.reads_images = true;
    embedding.shape.image_rows_max = 8;
    start(std::move(options), embedding);
  }
  static std::vector<Token> rows_of(const std::string& image) {
    std::vector<Token> rows;
    for (std::int32_t row = 0; row < 3; ++row) rows.push_back(llm::image_token(image, "p", row));
    return rows;
  }
  // A token, an image and another token; empty: a text without an image.
  EmbedTask image_task(std::uint64_t id, const std::vector<std::string>& images, sched::Flow flow = {.tenant = "a"}) {
    std::vector<std::vector<Token>> texts;
    std::vector<std::vector<image::ImageRun>> runs;
    for (const std::string& image : images) {
      std::vector<Token> text{static_cast<Token>(id)};
      runs.emplace_back();
      if (!image.empty()) {
        for (const Token row : rows_of(image)) text.push_back(row);
        runs.back().push_back({.image = image, .begin = 1, .count = 3, .first_row = 0, .encoded = nullptr});
      }
      text.push_back(7);
      texts.push_back(std::move(text));
    }
    EmbedTask made = task(id, texts, std::move(flow));
    made.images = std::move(runs);
    return made;
  }
  static image::EncodedPtr encoded(const std::string& image, std::int32_t rows = 3) {
    image::EncodedImage made{.rows = {}, .row_width = 2, .pieces_end = {rows}};
    for (const Token row : rows_of(image)) {
      made.rows.push_back(testing::fake_row_value(row));
      made.rows.push_back(1);
    }
    return std::make_shared<const image::EncodedImage>(std::move(made));
  }
  void answer(std::size_t index) { asked_[index].then(encoded(asked_[index].image)); }
  [[nodiscard]] std::vector<std::string> images_asked() const {
    std::vector<std::string> images;
    for (const Asked& each : asked_) images.push_back(each.image);
    return images;
  }

  std::vector<Asked> asked_;
};

TEST_F(EmbedLaneImagesTest, ATextWaitsForItsImageAndOtherTextsDoNot) {
  begin();
  lane_->post(image_task(1, {"x"}));
  EXPECT_FALSE(lane_->step().did_work);
  EXPECT_THAT(images_asked(), ElementsAre("x"));
  lane_->post(task(2, {text_of_token(2)}));
  EXPECT_TRUE(lane_->step().did_work);
  expect_whole(2);
  EXPECT_EQ(asked_.size(), 1u);
  answer(0);
  run();
  expect_whole(1);
  EXPECT_THAT(calls_, ElementsAre(ElementsAre(2), ElementsAre(1)));
}

TEST_F(EmbedLaneImagesTest, ATextWithAnImageHasACallOfItsOwn) {
  begin();
  lane_->post(image_task(1, {"", "x", ""}));
  lane_->post(task(2, {text_of_token(2), text_of_token(2)}));
  EXPECT_TRUE(lane_->step().did_work);
  EXPECT_THAT(calls_.back(), ElementsAre(1, 2, 2)) << "the image waits";
  EXPECT_FALSE(lane_->step().did_work);
  answer(0);
  lane_->post(task(3, {text_of_token(3)}, {.tenant = "b"}));
  run();
  EXPECT_THAT(calls_, ElementsAre(ElementsAre(1, 2, 2), ElementsAre(3), ElementsAre(1), ElementsAre(1)));
  for (const std::uint64_t id : {1, 2, 3}) expect_whole(id);
}

TEST_F(EmbedLaneImagesTest, ARequestOfManyImagesDoesNotDelayOneText) {
  begin();
  lane_->post(image_task(1, std::vector<std::string>(64, "x"), {.tenant = "a"}));
  EXPECT_FALSE(lane_->step().did_work);
  for (int round = 0; round < 5; ++round) {
    answer(asked_.size() - 1);
    EXPECT_TRUE(lane_->step().did_work);
    (void)lane_->step();
  }
  answer(asked_.size() - 1);
  lane_->post(task(2, {text_of_token(2)}, {.tenant = "b"}));
  EXPECT_TRUE(lane_->step().did_work);
  expect_whole(2);
}

TEST_F(EmbedLaneImagesTest, FewTextsHoldRowsAtATime) {
  begin();
  for (std::uint64_t id = 1; id <= 9; ++id) lane_->post(image_task(id, {std::format("x{}", id), "y"}));
  (void)lane_->step();
  EXPECT_EQ(asked_.size(), EmbedLane::kPreparedMax);
  EmbedTask background = image_task(10, {"z"});
  background.is_background = true;
  lane_->post(std::move(background));
  (void)lane_->step();
  EXPECT_EQ(asked_.size(), EmbedLane::kPreparedMax + 1) << "the classes do not wait for each other";
  for (std::size_t i = 0; i < asked_.size(); ++i) {
    answer(i);
    (void)lane_->step();
    (void)lane_->step();
  }
  run();
  for (std::uint64_t id = 1; id <= 10; ++id) expect_whole(id);
}

TEST_F(EmbedLaneImagesTest, AnImageOfTwoRequestsIsRequestedOnce) {
  begin();
  lane_->post(image_task(1, {"x"}));
  lane_->post(image_task(2, {"x"}));
  (void)lane_->step();
  EXPECT_EQ(asked_.size(), 1u);
  answer(0);
  run();
  expect_whole(1);
  expect_whole(2);
}

TEST_F(EmbedLaneImagesTest, AnImageThatCannotBeEncodedEndsItsRequest) {
  begin();
  lane_->post(image_task(1, {"x"}));
  lane_->post(image_task(2, {"y"}));
  (void)lane_->step();
  asked_[0].then(fail(ErrorCode::runtime_decode, "it is damaged"));
  answer(1);
  run();
  EXPECT_EQ(error_of(1), ErrorCode::runtime_decode);
  expect_whole(2);
  EXPECT_EQ(lane_->stats().requests_failed_total.value(), 1u);
}

TEST_F(EmbedLaneImagesTest, RowsThatSeeEachOtherMustFitIntoACall) {
  begin();
  lane_->post(image_task(1, {"x"}));
  (void)lane_->step();
  auto wide = *encoded("x", 9);
  wide.is_causal = false;
  asked_[0].then(std::make_shared<const image::EncodedImage>(std::move(wide)));
  (void)lane_->step();
  EXPECT_EQ(error_of(1), ErrorCode::limit_prompt);
  EXPECT_THAT(results_.at(1).error().message, ::testing::HasSubstr("9 rows in one call, but the context computes at most 8"));
}

TEST_F(EmbedLaneImagesTest, AnEncodingThatNobodyWaitsForEnds) {
  begin();
  lane_->post(image_task(1, {"x"}));
  (void)lane_->step();
  lane_->cancel({1});
  (void)lane_->step();
  EXPECT_EQ(error_of(1), ErrorCode::limit_wait);
  EXPECT_TRUE(asked_[0].end.stop_requested());
  lane_->post(image_task(2, {"x"}));
  (void)lane_->step();
  asked_[0].then(fail(ErrorCode::limit_wait, "ended"));
  (void)lane_->step();
  ASSERT_EQ(asked_.size(), 2u) << "it is requested again";
  answer(1);
  run();
  expect_whole(2);
}

TEST_F(EmbedLaneImagesTest, ADeadlinePassesWhileAnImageIsEncoded) {
  begin();
  EmbedTask late = image_task(1, {"x"});
  late.deadline = clock_.now() + std::chrono::seconds(1);
  const TimePoint deadline = late.deadline;
  lane_->post(std::move(late));
  EXPECT_EQ(lane_->step().wake, deadline);
  clock_.advance(std::chrono::seconds(2));
  (void)lane_->step();
  EXPECT_EQ(error_of(1), ErrorCode::limit_wait);
  EXPECT_TRUE(asked_[0].end.stop_requested());
}

TEST_F(EmbedLaneImagesTest, TheEndAnswersWhatWaits) {
  begin();
  lane_->post(image_task(1, {"x"}));
  (void)lane_->step();
  lane_->close();
  lane_->cancel_all();
  EXPECT_EQ(error_of(1), ErrorCode::limit_wait);
  lane_.reset();
  answer(0);  // Comes too late.
}

}  // namespace
}  // namespace uma::engine
