// Sequences are swapped out for others and resume.
#include <string>

#include <gtest/gtest.h>

#include "engine/lane/lane_test_support.h"

namespace uma::engine {
namespace {

using PreemptionTest = LaneTest;

TEST_F(PreemptionTest, ExhaustedCellsSwapTheNewestOutAndEveryoneFinishes) {
  make({.cells = 120, .sequences = 4, .unified = true});
  for (std::uint64_t i = 0; i < 4; ++i) post(job(i, "prompt number " + std::to_string(i), 40));
  run();
  for (std::uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(sinks_[i]->tokens, expected("prompt number " + std::to_string(i), 40)) << i;
    EXPECT_EQ(eos(i).reason, FinishReason::length);
  }
  EXPECT_GT(lane_->stats().preemptions_total.value(), 0u);
  EXPECT_GT(lane_->stats().warm_hits_total.value(), 0u);
  EXPECT_EQ(lane_->stats().swapped_bytes.value(), 0);
}

TEST_F(PreemptionTest, AStateThatCannotBeSavedIsComputedAgain) {
  make({.cells = 120, .sequences = 4, .unified = true});
  context_->fail_state = true;
  for (std::uint64_t i = 0; i < 4; ++i) post(job(i, "prompt number " + std::to_string(i), 40));
  run();
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(sinks_[i]->tokens, expected("prompt number " + std::to_string(i), 40)) << i;
  EXPECT_GT(lane_->stats().preemptions_total.value(), 0u);
}

TEST_F(PreemptionTest, AnInteractiveRequestTakesTheSlotOfABackgroundOneWhichResumes) {
  make({.cells = 200, .sequences = 1});
  GenerationJob nightly = job(1, "a long report", 60);
  nightly.is_background = true;
  post(std::move(nightly));
  while (sinks_[1]->tokens.size() < 5) step();
  post(job(2, "now", 5));
  while (!results_.contains(2)) step();
  EXPECT_FALSE(results_.contains(1));
  EXPECT_EQ(lane_->stats().preemptions_total.value(), 1u);
  run();
  EXPECT_EQ(sinks_[1]->tokens, expected("a long report", 60)) << "as if nobody had interrupted it";
  EXPECT_EQ(sinks_[2]->tokens, expected("now", 5));
}

}  // namespace
}  // namespace uma::engine
