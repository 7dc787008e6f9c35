// Calls that fail or are interrupted.
#include <algorithm>
#include <span>
#include <string>

#include <gtest/gtest.h>

#include "engine/lane/lane_test_support.h"

namespace uma::engine {
namespace {

using BatchRunnerTest = LaneTest;

TEST_F(BatchRunnerTest, AFailedDecodeEndsOnlyTheSequenceThatFailsAlone) {
  make({});
  context_->fault = [](std::span<const llm::BatchRow> rows) {
    const bool has_bad = std::ranges::any_of(rows, [](const llm::BatchRow& row) { return row.token == 'X'; });
    return has_bad ? FakeFault::decode_error : FakeFault::none;
  };
  post(job(1, "good one"));
  post(job(2, "bad X"));
  post(job(3, "good too"));
  run();
  EXPECT_EQ(sinks_[1]->tokens, expected("good one"));
  EXPECT_EQ(sinks_[3]->tokens, expected("good too"));
  EXPECT_EQ(error(2).code, ErrorCode::runtime_decode);
}

TEST_F(BatchRunnerTest, AnInterruptedPrefillGoesOnWhereItStopped) {
  make({.batch_rows_max = 16});
  int calls = 0;
  context_->fault = [&](std::span<const llm::BatchRow>) {
    return ++calls % 2 == 1 ? FakeFault::interrupted_half : FakeFault::none;
  };
  post(job(1, "a prompt that needs several chunks of prefill"));
  run();
  EXPECT_EQ(sinks_[1]->tokens, expected("a prompt that needs several chunks of prefill"));
}

TEST_F(BatchRunnerTest, AnInterruptedCallOfAModelThatCannotBeCutIsComputedAgain) {
  make({.can_truncate = false});
  int calls = 0;
  context_->fault = [&](std::span<const llm::BatchRow>) {
    return ++calls % 4 == 2 ? FakeFault::interrupted_half : FakeFault::none;
  };
  for (std::uint64_t i = 0; i < 3; ++i) post(job(i, "prompt " + std::to_string(i), 20));
  run();
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(sinks_[i]->tokens, expected("prompt " + std::to_string(i), 20)) << i;
}

}  // namespace
}  // namespace uma::engine
