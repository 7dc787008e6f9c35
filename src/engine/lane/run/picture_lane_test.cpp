#include "engine/lane/run/picture_lane.h"

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "testing/fake_picture.h"
#include "testing/sim_clock.h"

namespace uma::engine {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::fake_gray;
using testing::FakePicture;
using testing::FakePictureOptions;
using ::testing::HasSubstr;
using testing::SimClock;
using End = PictureOutcome::End;

class PictureLaneTest : public ::testing::Test {
 protected:
  PictureLaneTest() { init_log(LogLevel::error); }

  void start(PictureLaneOptions options = {}, FakePictureOptions picture = {}) {
    picture.clock = &clock_;
    auto context = std::make_unique<FakePicture>(picture);
    context_ = context.get();
    context_->on_denoise = [this](std::span<const llm::DenoiseRow> rows) {
      std::vector<float>& call = calls_.emplace_back();
      for (const llm::DenoiseRow& row : rows) call.push_back(row.caption->pooled.front());
      if (in_call_) in_call_();
    };
    lane_ = std::make_unique<PictureLane>(std::move(options), std::move(context), clock_);
  }
  // A request whose caption is its id.
  PictureTask task(std::int32_t id, std::int32_t count = 1, std::int32_t steps = 4, sched::Flow flow = {.tenant = "a"}) {
    PictureTask made{.id = {static_cast<std::uint64_t>(id)},
                     .caption = {.ids = {id}, .weights = {}},
                     .negative = {.ids = {0}, .weights = {}},
                     .drawing = {.width = 2, .height = 2, .steps = steps, .guidance = 1, .seed = 10},
                     .count = count,
                     .flow = std::move(flow),
                     .received = clock_.now(),
                     .on_step = nullptr,
                     .done = nullptr};
    made.on_step = [this, id](const PictureTask::Step& step) {
      if (!step.is_decoding) steps_[id].push_back(step.picture);
      etas_[id].push_back(step.eta_ms);
      if (step.drawing.is_done()) {
        seeds_[id].push_back(step.drawing.options().seed);
        grays_[id].push_back(static_cast<float>(step.drawing.levels().front()) / 127.5F - 1);
      }
      return !is_slow_;
    };
    made.done = [this, id](const PictureOutcome& outcome) {
      EXPECT_TRUE(outcomes_.emplace(id, outcome).second) << "a second outcome of " << id;
    };
    return made;
  }
  void run() {
    while (lane_->step().did_work) {
    }
  }
  [[nodiscard]] static float gray_of(std::int32_t id) { return fake_gray(std::vector{id}); }
  // Expects that the request has drawn its own caption so many times.
  void expect_drawn(std::int32_t id, std::size_t count) {
    ASSERT_TRUE(outcomes_.contains(id)) << id;
    EXPECT_EQ(outcomes_.at(id).end, End::done) << outcomes_.at(id).error.message;
    EXPECT_EQ(grays_[id].size(), count);
    EXPECT_THAT(grays_[id], Each(::testing::FloatNear(gray_of(id), 0.01F)));
  }

  SimClock clock_;
  FakePicture* context_ = nullptr;
  std::unique_ptr<PictureLane> lane_;
  std::map<std::int32_t, std::vector<std::int32_t>> steps_;  // The pictures of each request's steps.
  std::map<std::int32_t, std::vector<double>> etas_;
  std::map<std::int32_t, std::vector<std::uint64_t>> seeds_;  // Seeds of finished pictures.
  std::map<std::int32_t, std::vector<float>> grays_;          // Gray levels of finished pictures.
  std::map<std::int32_t, PictureOutcome> outcomes_;
  std::vector<std::vector<float>> calls_;  // The captions of each call's rows.
  std::function<void()> in_call_;
  bool is_slow_ = false;
};

TEST_F(PictureLaneTest, DrawsEachStepOfEachPicture) {
  start();
  clock_.advance(std::chrono::seconds(1));
  lane_->post(task(1, 2, 3));
  EXPECT_EQ(lane_->stats().queue_depth.value(), 1);
  run();
  expect_drawn(1, 2);
  EXPECT_THAT(seeds_[1], ElementsAre(10, 11));
  EXPECT_THAT(steps_[1], ElementsAre(0, 1, 0, 1, 0, 1)) << "both in one call";
  EXPECT_THAT(etas_[1], ElementsAre(40, 40, 20, 20, 0, 0)) << "20 ms a call";
  EXPECT_EQ(outcomes_.at(1).queue_ms, 0);
  EXPECT_EQ(outcomes_.at(1).draw_ms, 60);
  EXPECT_EQ(outcomes_.at(1).steps_done, 6);
  EXPECT_EQ(lane_->stats().queue_depth.value(), 0);
  EXPECT_EQ(lane_->stats().pictures_total.value(), 2u);
  EXPECT_EQ(lane_->stats().steps_total.value(), 6u);
  EXPECT_EQ(lane_->stats().calls_total.value(), 3u);
}

TEST_F(PictureLaneTest, AGuidedStepIsTwoRowsOfACall) {
  start();
  PictureTask guided = task(1);
  guided.drawing.guidance = 3;
  lane_->post(std::move(guided));
  EXPECT_TRUE(lane_->step().did_work);
  EXPECT_THAT(calls_, ElementsAre(ElementsAre(gray_of(1), gray_of(0))));
  run();
  EXPECT_EQ(outcomes_.at(1).end, End::done);
  EXPECT_NEAR(grays_[1].front(), std::clamp(gray_of(0) + 3 * (gray_of(1) - gray_of(0)), -1.0F, 1.0F), 0.01F);
}

TEST_F(PictureLaneTest, BeginsWithAPictureAtALaterStep) {
  start();
  PictureTask begun = task(1, 2, 4);
  begun.begin.assign(2 * 2 * 3, 255);
  begun.first_step = 3;
  lane_->post(std::move(begun));
  run();
  expect_drawn(1, 2);
  EXPECT_THAT(steps_[1], ElementsAre(0, 1)) << "one step of each";
  EXPECT_THAT(etas_[1], ElementsAre(0, 0));
  EXPECT_EQ(outcomes_.at(1).steps_done, 2);
}

TEST_F(PictureLaneTest, APictureIsDecodedAloneInItsCall) {
  start({}, {.decodes = true});
  lane_->post(task(1, 2, 2));
  lane_->post(task(2, 1, 3));
  run();
  expect_drawn(1, 2);
  expect_drawn(2, 1);
  EXPECT_EQ(context_->decoded, 3);
  EXPECT_THAT(steps_[1], ElementsAre(0, 1, 0, 1)) << "decoding is not a step";
  EXPECT_THAT(steps_[2], ElementsAre(0, 0, 0));
  EXPECT_EQ(outcomes_.at(1).steps_done, 4);
  EXPECT_EQ(lane_->stats().steps_total.value(), 7u);
  EXPECT_EQ(lane_->stats().calls_total.value(), calls_.size() + 3);
  EXPECT_EQ(lane_->stats().pictures_total.value(), 3u);
}

TEST_F(PictureLaneTest, DecodingIsEndedByACancelAndRepeatedAfterAnother) {
  start({}, {.decodes = true});
  lane_->post(task(1));
  context_->on_decode = [this] { lane_->cancel({1}); };
  run();
  EXPECT_EQ(outcomes_.at(1).end, End::cancelled);
  EXPECT_EQ(context_->decoded, 0);
  context_->on_decode = nullptr;
  lane_->post(task(2));
  run();
  expect_drawn(2, 1);
}

TEST_F(PictureLaneTest, PicturesOfManyRequestsShareACallAtAnyOfTheirSteps) {
  start();
  lane_->post(task(1, 1, 6));
  EXPECT_TRUE(lane_->step().did_work);
  lane_->post(task(2, 1, 3));
  EXPECT_TRUE(lane_->step().did_work);
  EXPECT_THAT(calls_.back(), ElementsAre(gray_of(2), gray_of(1))) << "that with the fewest steps first";
  run();
  expect_drawn(1, 1);
  expect_drawn(2, 1);
  EXPECT_EQ(lane_->stats().calls_total.value(), 6u);
}

TEST_F(PictureLaneTest, CallsAreShortAndKeepTheBoundsOfTheContext) {
  start({.call_ms_max = 1000}, {.rows_max = 4});
  lane_->post(task(1, 10, 2));
  run();
  for (const auto& call : calls_) EXPECT_LE(call.size(), 4u);
  EXPECT_EQ(calls_.front().size(), 2u) << "the time of a row is not known yet";
  expect_drawn(1, 10);

  calls_.clear();
  bool has_streams = true;
  start({.call_ms_max = 60, .call_ms_beside_streams = 30, .has_streams = [&] { return has_streams; }});
  lane_->post(task(2, 10, 2));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(lane_->step().did_work);
  EXPECT_EQ(calls_.back().size(), 3u);
  has_streams = false;
  EXPECT_TRUE(lane_->step().did_work);
  EXPECT_EQ(calls_.back().size(), 6u);
}

TEST_F(PictureLaneTest, OnePictureDoesNotWaitForTen) {
  start({.call_ms_max = 20});
  lane_->post(task(1, 10, 4, {.tenant = "a", .client = 1}));
  EXPECT_TRUE(lane_->step().did_work);
  lane_->post(task(2, 1, 4, {.tenant = "a", .client = 2}));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(lane_->step().did_work);
  expect_drawn(2, 1);
  EXPECT_FALSE(outcomes_.contains(1));
}

TEST_F(PictureLaneTest, TenantsShareTheCallsByWork) {
  start({.call_ms_max = 20});
  for (int id = 1; id <= 4; ++id) lane_->post(task(id, 10, 10, {.tenant = "many", .client = static_cast<std::uint64_t>(id)}));
  lane_->post(task(5, 10, 10, {.tenant = "one"}));
  for (int i = 0; i < 40; ++i) EXPECT_TRUE(lane_->step().did_work);
  std::size_t of_many = 0;
  for (int id = 1; id <= 4; ++id) of_many += steps_[id].size();
  EXPECT_NEAR(static_cast<double>(of_many), static_cast<double>(steps_[5].size()), 4);
}

TEST_F(PictureLaneTest, BackgroundTakesTheRoomThatOthersLeave) {
  start({.call_ms_max = 30});
  PictureTask background = task(1, 10, 4);
  background.is_background = true;
  lane_->post(std::move(background));
  lane_->post(task(2, 1, 4));
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(lane_->step().did_work);
    EXPECT_EQ(calls_.back().front(), gray_of(2));
  }
  expect_drawn(2, 1);
  EXPECT_FALSE(outcomes_.contains(1));
  run();
  expect_drawn(1, 10);
}

TEST_F(PictureLaneTest, ARequestEndsAtItsDeadline) {
  start();
  PictureTask late = task(1, 1, 100);
  late.deadline = clock_.now() + std::chrono::milliseconds(35);
  lane_->post(std::move(late));
  run();
  ASSERT_EQ(outcomes_.at(1).end, End::failed);
  EXPECT_EQ(outcomes_.at(1).error.code, ErrorCode::limit_wait);
  EXPECT_EQ(steps_[1].size(), 4u);
  EXPECT_EQ(lane_->stats().requests_failed_total.value(), 1u);
}

TEST_F(PictureLaneTest, WhatIsCancelledIsNotDrawn) {
  start();
  lane_->post(task(1));
  lane_->post(task(2));
  lane_->cancel({1});
  lane_->cancel({7});
  run();
  EXPECT_EQ(outcomes_.at(1).end, End::cancelled);
  EXPECT_TRUE(steps_[1].empty());
  expect_drawn(2, 1);
  EXPECT_EQ(lane_->stats().requests_cancelled_total.value(), 1u);
}

TEST_F(PictureLaneTest, ACancelInterruptsACallThatIsItsOwn) {
  start();
  lane_->post(task(1, 1, 100));
  in_call_ = [this] { lane_->cancel({1}); };
  EXPECT_TRUE(lane_->step().did_work);
  EXPECT_TRUE(steps_[1].empty());
  EXPECT_FALSE(lane_->step().did_work);
  EXPECT_EQ(outcomes_.at(1).end, End::cancelled);
}

TEST_F(PictureLaneTest, ACancelDoesNotInterruptWhatOthersShare) {
  start();
  lane_->post(task(1));
  lane_->post(task(2));
  in_call_ = [this] {
    lane_->cancel({1});
    in_call_ = nullptr;
  };
  run();
  EXPECT_EQ(outcomes_.at(1).end, End::cancelled);
  EXPECT_EQ(steps_[1].size(), 1u);
  expect_drawn(2, 1);
  EXPECT_EQ(calls_.size(), 4u);
}

TEST_F(PictureLaneTest, AClientThatReadsTooSlowlyEndsItsOwnRequest) {
  start();
  lane_->post(task(1, 2));
  lane_->post(task(2));
  in_call_ = [this] { is_slow_ = true; };
  EXPECT_TRUE(lane_->step().did_work);
  EXPECT_EQ(outcomes_.at(1).end, End::slow_consumer);
  EXPECT_EQ(steps_[1].size(), 1u) << "nothing follows";
}

TEST_F(PictureLaneTest, NumbersThatAreNoneEndTheRequest) {
  start();
  context_->is_damaged = true;
  lane_->post(task(1));
  run();
  ASSERT_EQ(outcomes_.at(1).end, End::failed);
  EXPECT_EQ(outcomes_.at(1).error.code, ErrorCode::runtime_decode);
  EXPECT_THAT(outcomes_.at(1).error.message, HasSubstr("not finite"));
}

TEST_F(PictureLaneTest, ACallThatFailsIsRepeatedForEachAlone) {
  start();
  lane_->post(task(1));
  lane_->post(task(2));
  context_->fails = [](std::span<const llm::DenoiseRow> rows) {
    return std::ranges::any_of(rows, [](const llm::DenoiseRow& row) { return row.caption->pooled.front() == gray_of(1); });
  };
  run();
  ASSERT_EQ(outcomes_.at(1).end, End::failed);
  EXPECT_EQ(outcomes_.at(1).steps_done, 0);
  expect_drawn(2, 1);
  EXPECT_EQ(lane_->stats().requests_failed_total.value(), 1u);
}

TEST_F(PictureLaneTest, ALostDeviceEndsEveryRequest) {
  std::atomic<bool> lost = false;
  int told = 0;
  start({.on_lost = [&] { ++told; }}, {.lost = &lost});
  lane_->post(task(1, 1, 100));
  lane_->post(task(2));
  EXPECT_TRUE(lane_->step().did_work);
  in_call_ = [&] { lost = true; };
  EXPECT_TRUE(lane_->step().did_work);
  EXPECT_FALSE(lane_->step().did_work);
  for (const int id : {1, 2}) {
    ASSERT_EQ(outcomes_.at(id).end, End::failed);
    EXPECT_EQ(outcomes_.at(id).error.code, ErrorCode::runtime_decode);
  }
  EXPECT_FALSE(lane_->step().did_work);
  EXPECT_EQ(told, 1);
}

TEST_F(PictureLaneTest, SharesTheThreadsWithOthers) {
  const auto workers = std::make_shared<BusyWorkers>(4);
  start({.threads = 4, .workers = workers});
  lane_->post(task(1));
  EXPECT_TRUE(lane_->step().did_work);
  EXPECT_EQ(context_->threads(), 4);
  workers->add(1);
  EXPECT_TRUE(lane_->step().did_work);
  EXPECT_EQ(context_->threads(), 2);
  run();
  EXPECT_EQ(workers->count(), 1) << "an idle lane does not count";
}

TEST_F(PictureLaneTest, TheEndOfTheLaneEndsWhatIsLeft) {
  start();
  lane_->post(task(1, 1, 100));
  EXPECT_TRUE(lane_->step().did_work);
  lane_->close();
  lane_->post(task(2));
  lane_->cancel_all();
  EXPECT_EQ(outcomes_.at(1).end, End::cancelled);
  EXPECT_EQ(lane_->stats().waiting_since_us.value(), 0);
}

}  // namespace
}  // namespace uma::engine
