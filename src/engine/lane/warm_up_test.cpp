#include "engine/lane/warm_up.h"

#include <memory>
#include <span>
#include <utility>

#include <gtest/gtest.h>

#include "engine/lane/lane_test_support.h"

namespace uma::engine {
namespace {

class WarmUps : public LaneTest {
 protected:
  void make_warm(std::shared_ptr<BusyWorkers> workers = nullptr, std::int32_t sequences = 3) {
    LaneOptions options;
    options.warms_up = true;
    options.workers = std::move(workers);
    make({.sequences = sequences}, std::move(options));
  }
  static constexpr std::int32_t kManySequences = 8;  // With which the fake context has as many rows as are measured.
  static constexpr std::uint64_t kMeasured = 3 * sched::WidthCosts::kWidths;
  std::uint64_t calls() { return lane_->stats().batch_calls_total.value(); }
};

TEST_F(WarmUps, ALaneComputesEveryWidthBeforeItsFirstRequest) {
  make_warm();
  run();
  EXPECT_EQ(calls(), 6u) << "one row, two prompts, and one row of one, two and three sequences";
  EXPECT_EQ(context_->sequence_length(0), 0);
  EXPECT_FALSE(lane_->step().did_work);
}

TEST_F(WarmUps, ThenItMeasuresEveryWidth) {
  make_warm(nullptr, kManySequences);
  run();
  EXPECT_EQ(calls(), 3 + kManySequences + kMeasured);
  EXPECT_EQ(context_->sequence_length(0), 0);
}

TEST_F(WarmUps, TheMeasurementGoesOnAfterARequestInAnEmptySlot) {
  make_warm(nullptr, kManySequences);
  for (int i = 0; i < 3 + kManySequences + 5; ++i) step();
  post(job(1, "a question", 2));
  run();
  EXPECT_EQ(results_.at(1).generated, expected("a question", 2));
  EXPECT_GE(calls(), 3 + kManySequences + kMeasured + 2);
  EXPECT_EQ(lane_->stats().cells_used.value(), context_->sequence_length(0));
  for (std::int32_t sequence = 1; sequence < kManySequences; ++sequence) EXPECT_EQ(context_->sequence_length(sequence), 0);
}

TEST_F(WarmUps, TheFirstRequestEndsIt) {
  make_warm();
  step();
  EXPECT_EQ(calls(), 1u);
  post(job(1, "a question", 2));
  run();
  EXPECT_EQ(eos(1).reason, FinishReason::length);
  const std::uint64_t before = calls();
  run();
  EXPECT_EQ(calls(), before) << "nothing is left to warm up";
}

TEST_F(WarmUps, ItGivesWayToOtherWorkers) {
  const auto workers = std::make_shared<BusyWorkers>(2);
  make_warm(workers);
  workers->add(1);
  run();
  EXPECT_EQ(calls(), 0u);
}

TEST_F(WarmUps, ACallThatFailsEndsIt) {
  make_warm();
  context_->fault = [](std::span<const llm::BatchRow>) { return FakeFault::decode_error; };
  run();
  EXPECT_EQ(calls(), 1u);
}

TEST_F(WarmUps, NothingThatIsNotFiniteStaysInTheCells) {
  make_warm();
  context_->fault = [](std::span<const llm::BatchRow>) { return FakeFault::not_finite; };
  run();
  EXPECT_EQ(calls(), 1u);
  context_->fault = nullptr;
  post(job(1, "a question", 2));
  run();
  EXPECT_EQ(results_.at(1).generated, expected("a question", 2));
}

TEST_F(WarmUps, WithoutTheOptionThereIsNone) {
  make({.sequences = 3});
  run();
  EXPECT_EQ(calls(), 0u);
}

}  // namespace
}  // namespace uma::engine
