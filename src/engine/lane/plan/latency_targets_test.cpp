#include "engine/lane/plan/latency_targets.h"

#include <gtest/gtest.h>

#include "testing/fake_model.h"

namespace uma::engine {
namespace {

Sequence sequence_that_wants(double ttft_ms, double tbt_ms) {
  static const testing::FakeVocab vocab;
  GenerationJob job;
  job.tokens = {1};
  job.target_ttft_ms = ttft_ms;
  job.target_tbt_ms = tbt_ms;
  job.received = TimePoint(std::chrono::seconds(5));
  return Sequence(std::move(job), vocab, {});
}

TEST(LatencyTargets, WithoutASettingATickIsAsLongAsThreeDecodes) {
  LaneOptions options;
  options.tick_ms = 30;
  sched::StepModel model;
  const LatencyTargets targets(options, model);
  EXPECT_EQ(targets.default_tbt_ms(), 30) << "nothing was measured";
  sched::StepShape decode;
  decode.add_decode(10);
  for (int i = 0; i < 100; ++i) model.observe(decode, 50);
  EXPECT_NEAR(targets.default_tbt_ms(), 150, 5);
  options.target_tbt_ms = 40;
  EXPECT_EQ(targets.default_tbt_ms(), 40);
}

TEST(LatencyTargets, OnADeviceATickHasRoomForAnEfficientChunk) {
  LaneOptions options;
  options.tick_ms = 30;
  sched::StepModel model;
  const LatencyTargets targets(options, model);
  sched::StepShape decode;
  decode.add_decode(10);
  // The times of an 8 B model in Q4_0 on a large GPU.
  const auto chunk = [](std::int32_t rows) {
    sched::StepShape shape;
    shape.add_chunk(rows, 0);
    return shape;
  };
  for (int i = 0; i < 10; ++i) {
    model.observe(decode, 4);
    model.observe(chunk(64), 24);
    model.observe(chunk(512), 57);
  }
  EXPECT_EQ(targets.default_tbt_ms(), 30);
  options.is_on_devices = true;
  EXPECT_GT(targets.default_tbt_ms(), 4 + 2 * 19);
  EXPECT_LT(targets.default_tbt_ms(), 4 + 2.5 * 19);
  for (int i = 0; i < 100; ++i) model.observe(chunk(64), 240);
  EXPECT_EQ(targets.default_tbt_ms(), 100) << "streams do not stand still for longer";
  options.target_tbt_ms = 20;
  EXPECT_EQ(targets.default_tbt_ms(), 20) << "a setting counts";
}

TEST(LatencyTargets, AClientGetsShorterPausesThanTheDefaultByHalfAtMost) {
  LaneOptions options;
  options.target_tbt_ms = 40;
  const sched::StepModel model;
  const LatencyTargets targets(options, model);
  EXPECT_EQ(targets.tbt_ms(sequence_that_wants(0, 0)), 40);
  EXPECT_EQ(targets.tbt_ms(sequence_that_wants(0, 100)), 100);
  EXPECT_EQ(targets.tbt_ms(sequence_that_wants(0, 25)), 25);
  EXPECT_EQ(targets.tbt_ms(sequence_that_wants(0, 1)), 20);
}

TEST(LatencyTargets, StreamsOfAFastModelWaitForHalfATick) {
  LaneOptions options;
  options.tick_ms = 30;
  sched::StepModel model;
  const LatencyTargets targets(options, model);
  const Sequence any = sequence_that_wants(0, 0);
  EXPECT_EQ(targets.planned_tbt_ms(any), 30) << "nothing was measured";
  sched::StepShape decode;
  decode.add_decode(10);
  const auto measure = [&](double ms) {
    for (int i = 0; i < 200; ++i) model.observe(decode, ms);
  };
  measure(1);
  EXPECT_EQ(targets.planned_tbt_ms(any), 15);
  EXPECT_EQ(targets.tbt_ms(any), 30) << "what is promised stays";
  EXPECT_EQ(targets.planned_tbt_ms(sequence_that_wants(0, 40)), 40) << "a client's word counts";
  measure(5);
  EXPECT_NEAR(targets.planned_tbt_ms(any), 20, 1);
  measure(50);
  EXPECT_NEAR(targets.planned_tbt_ms(any), 150, 5);
  options.is_on_devices = true;
  EXPECT_EQ(targets.planned_tbt_ms(any), targets.tbt_ms(any)) << "a device needs large chunks";
}

TEST(LatencyTargets, AFirstTokenIsDueAfterItsRequestCame) {
  LaneOptions options;
  const sched::StepModel model;
  const LatencyTargets targets(options, model);
  const TimePoint received(std::chrono::seconds(5));
  EXPECT_EQ(targets.first_token_due(sequence_that_wants(0, 0)), kNever);
  EXPECT_EQ(targets.first_token_due(sequence_that_wants(100, 0)), received + std::chrono::milliseconds(100));
  options.target_ttft_ms = 300;
  EXPECT_EQ(targets.first_token_due(sequence_that_wants(0, 0)), received + std::chrono::milliseconds(300));
  EXPECT_EQ(targets.first_token_due(sequence_that_wants(100, 0)), received + std::chrono::milliseconds(100))
      << "the client's word goes before the lane's";
}

}  // namespace
}  // namespace uma::engine
