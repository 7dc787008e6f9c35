// The order in which sequences get slots, and deadlines in the queue.
#include <chrono>
#include <string>

#include <gtest/gtest.h>

#include "engine/lane/lane_test_support.h"

namespace uma::engine {
namespace {

using AdmissionTest = LaneTest;

TEST_F(AdmissionTest, MoreRequestsThanSlotsWaitTheirTurn) {
  make({.sequences = 2});
  for (std::uint64_t i = 0; i < 7; ++i) post(job(i, "prompt " + std::to_string(i)));
  run();
  for (std::uint64_t i = 0; i < 7; ++i) EXPECT_EQ(sinks_[i]->tokens, expected("prompt " + std::to_string(i)));
  EXPECT_EQ(lane_->stats().queue_depth.value(), 0);
}

TEST_F(AdmissionTest, WaitingPastTheDeadlineIsRefusedWithPosition) {
  make({.sequences = 1});
  post(job(1, "first", 50));
  GenerationJob late = job(2, "second");
  late.deadline = clock_.now() + std::chrono::milliseconds(5);
  post(std::move(late));
  run();
  EXPECT_EQ(eos(1).reason, FinishReason::length);
  EXPECT_EQ(error(2).code, ErrorCode::limit_wait);
  EXPECT_TRUE(error(2).message.contains("position 1")) << error(2).message;
}

TEST_F(AdmissionTest, InteractiveRequestsDoNotTakeEachOthersSlots) {
  make({.cells = 200, .sequences = 1});
  post(job(1, "first", 20));
  lane_->step();
  post(job(2, "second", 5));
  run();
  EXPECT_EQ(lane_->stats().preemptions_total.value(), 0u);
}

// With endless interactive work a background request is placed after 10 s, and keeps its slot for a while.
TEST_F(AdmissionTest, ABackgroundRequestIsNotStarved) {
  make({.cells = 200, .sequences = 1, .row_cost = std::chrono::milliseconds(20)});
  GenerationJob nightly = job(1, "report", 5);
  nightly.is_background = true;
  post(job(2, "question", 20));
  post(std::move(nightly));
  std::uint64_t id = 3;
  const TimePoint began = clock_.now();
  for (int i = 0; i < 5000 && !results_.contains(1); ++i) {
    if (lane_->stats().queue_depth.value() < 3) post(job(id++, "question", 20));
    step();
  }
  ASSERT_TRUE(results_.contains(1));
  EXPECT_GT(to_ms(clock_.now() - began), 10'000);
  EXPECT_LT(to_ms(clock_.now() - began), 15'000);
}

TEST_F(AdmissionTest, AClientWithManyRequestsDoesNotStarveAnother) {
  make({.cells = 200, .sequences = 1});
  for (std::uint64_t id = 1; id <= 50; ++id) {
    GenerationJob many = job(id, "one of many", 10);
    many.flow = {"tenant", 1};
    post(std::move(many));
  }
  while (results_.size() < 2) step();
  GenerationJob single = job(100, "only one", 10);
  single.flow = {"tenant", 2};
  post(std::move(single));
  while (!results_.contains(100)) step();
  EXPECT_LE(results_.size(), 5u) << "two that were done, the one that ran, the one itself, one more at most";
  run();
}

}  // namespace
}  // namespace uma::engine
