#include "engine/lane/plan/warm_up.h"

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "engine/lane/lane_test_support.h"

namespace uma::engine {
namespace {

// Keeps widths in memory.
struct Kept : KeptWidths {
  [[nodiscard]] std::optional<sched::WidthTimes> find(const std::string& context, std::int32_t threads) const override {
    const auto found = times.find({context, threads});
    return found == times.end() ? std::nullopt : std::optional(found->second);
  }
  void keep(const std::string& context, std::int32_t threads, const sched::WidthTimes& ms) override {
    times[{context, threads}] = ms;
  }
  std::map<std::pair<std::string, std::int32_t>, sched::WidthTimes> times;
};

class WarmUps : public LaneTest {
 protected:
  void make_warm(std::shared_ptr<BusyWorkers> workers = nullptr, std::int32_t sequences = 3) {
    LaneOptions options;
    options.warms_up = true;
    options.workers = std::move(workers);
    make({.sequences = sequences}, std::move(options));
  }
  void make_with(const std::shared_ptr<Kept>& kept, std::int32_t threads = 1, std::optional<double> others = {}) {
    LaneOptions options;
    options.threads = threads;
    options.warms_up = true;
    options.widths = kept;
    options.others_busy_while_measured = [others] { return others; };
    make(kSlow, std::move(options));
  }
  static constexpr std::int32_t kManySequences = 8;  // With which the fake context has as many rows as are measured.
  static constexpr std::uint64_t kMeasured = 3 * sched::WidthCosts::kWidths;
  static constexpr FakeOptions kSlow{.sequences = kManySequences, .decode_cost = std::chrono::milliseconds(10)};
  std::uint64_t calls() { return lane_->stats().batch_calls_total.value(); }
};

TEST_F(WarmUps, ALaneComputesEveryWidthBeforeItsFirstRequest) {
  make_warm();
  run();
  EXPECT_EQ(calls(), 6u) << "one row, two prompts, and one row of one, two and three sequences";
  EXPECT_EQ(context_->sequence_length(0), 0);
  EXPECT_FALSE(lane_->step().did_work);
}

TEST_F(WarmUps, TheLaneSaysOnceThatItIsWarm) {
  int told = 0;
  LaneOptions options;
  options.warms_up = true;
  options.on_warm = [&] { ++told; };
  make({.sequences = 3}, std::move(options));
  step();
  EXPECT_EQ(told, 1) << "after the call that brings the weights into memory";
  EXPECT_EQ(calls(), 1U);
  run();
  EXPECT_EQ(told, 1);
}

TEST_F(WarmUps, ARequestThatComesFirstMakesTheLaneWarm) {
  int told = 0;
  LaneOptions options;
  options.warms_up = true;
  options.on_warm = [&] { ++told; };
  make({.sequences = 3}, std::move(options));
  post(job(1, "a question", 2));
  step();
  EXPECT_EQ(told, 1);
  run();
  EXPECT_EQ(results_.at(1).generated, expected("a question", 2));
}

TEST_F(WarmUps, ALaneThatEndsBeforeItIsWarmSaysSoToo) {
  int told = 0;
  LaneOptions options;
  options.warms_up = true;
  options.on_warm = [&] { ++told; };
  make({.sequences = 3}, std::move(options));
  lane_->cancel_all();
  EXPECT_EQ(told, 1);
}

TEST_F(WarmUps, OnADeviceTheLaneIsWarmAfterAllShapesOfCalls) {
  int told = 0;
  LaneOptions options;
  options.warms_up = true;
  options.is_on_devices = true;
  options.on_warm = [&] { ++told; };
  make({.sequences = 3, .batch_rows_max = 256}, std::move(options));
  for (int i = 0; i < 8; ++i) step();
  EXPECT_EQ(told, 0);
  step();
  EXPECT_EQ(told, 1);
}

TEST_F(WarmUps, OnADeviceTheFirstRequestWaitsForAllShapesOfCalls) {
  LaneOptions options;
  options.warms_up = true;
  options.is_on_devices = true;
  make({.sequences = 3, .batch_rows_max = 256}, std::move(options));
  post(job(1, "a question", 2));
  for (int i = 0; i < 9; ++i) step();
  EXPECT_EQ(calls(), 9U) << "one row, five prompts, and one row of one, two and three sequences";
  EXPECT_EQ(context_->sequence_length(0), 0);
  run();
  EXPECT_EQ(results_.at(1).generated, expected("a question", 2));
}

TEST_F(WarmUps, OnASlowDeviceTheFirstRequestDoesNotWait) {
  LaneOptions options;
  options.warms_up = true;
  options.is_on_devices = true;
  make({.sequences = 3, .batch_rows_max = 256, .decode_cost = std::chrono::seconds(1)}, std::move(options));
  for (int i = 0; i < 3; ++i) step();
  post(job(1, "a question", 2));
  run();
  EXPECT_EQ(results_.at(1).generated, expected("a question", 2));
  EXPECT_EQ(calls(), 5U) << "three to warm up, the prompt and a token";
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

TEST_F(WarmUps, WhatWasMeasuredIsKeptForTheNextStart) {
  const auto kept = std::make_shared<Kept>();
  make_with(kept);
  run();
  ASSERT_EQ(kept->times.size(), 1u);
  const sched::WidthTimes ms = kept->times.at({context_->state_identity(), 1});
  for (std::size_t i = 0; i < ms.size(); ++i) EXPECT_NEAR(ms[i], 10.1 + 0.1 * static_cast<double>(i), 1e-6);

  make_with(kept);
  run();
  EXPECT_EQ(calls(), 3 + kManySequences) << "nothing was measured";
  EXPECT_EQ(kept->times.size(), 1u);
}

TEST_F(WarmUps, WidthsOfAnotherNumberOfThreadsAreMeasured) {
  const auto kept = std::make_shared<Kept>();
  make_with(kept);
  run();
  make_with(kept, 2);
  run();
  EXPECT_EQ(calls(), 3 + kManySequences + kMeasured);
  EXPECT_EQ(kept->times.size(), 2u);
}

TEST_F(WarmUps, WidthsAreFoundWhenTheThreadsAreFreeAgain) {
  const auto kept = std::make_shared<Kept>();
  make_with(kept, 2);
  run();
  const auto workers = std::make_shared<BusyWorkers>(2);
  workers->add(2);
  LaneOptions options;
  options.threads = 2;
  options.warms_up = true;
  options.widths = kept;
  options.workers = workers;
  make(kSlow, std::move(options));
  workers->add(-2);
  run();
  EXPECT_EQ(calls(), 3 + kManySequences);
}

TEST_F(WarmUps, WhatWasMeasuredBesideBusyProgramsIsNotKept) {
  const auto kept = std::make_shared<Kept>();
  make_with(kept, 1, 0.5);
  run();
  EXPECT_EQ(calls(), 3 + kManySequences + kMeasured);
  EXPECT_TRUE(kept->times.empty());
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
