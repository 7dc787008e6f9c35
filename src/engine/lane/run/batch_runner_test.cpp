// Calls that fail or are interrupted.
#include <algorithm>
#include <atomic>
#include <functional>
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

// A lane whose model loses its device in the call that meets the condition.
class LostLaneTest : public LaneTest {
 protected:
  void make_losing(std::function<bool(std::span<const llm::BatchRow>)> loses, FakeOptions options = {}) {
    options.lost = &lost_;
    LaneOptions lane_options;
    lane_options.on_lost = [this] { ++told_; };
    lane_options.store = &store_;
    lane_options.stored_tokens_min = 4;
    make(options, std::move(lane_options));
    context_->fault = [this, loses = std::move(loses)](std::span<const llm::BatchRow> rows) {
      ++calls_;
      return loses(rows) ? FakeFault::lost : FakeFault::none;
    };
  }

  std::atomic<bool> lost_ = false;
  int told_ = 0;
  int calls_ = 0;
  kv::StateStore store_{{.warm_bytes_max = 1 << 20}, nullptr, clock_};
};

TEST_F(LostLaneTest, EveryRequestEndsAndNoneIsTriedAlone) {
  for (const bool can_truncate : {true, false}) {
    lost_ = false;
    told_ = calls_ = 0;
    int call_lost = 0;
    make_losing(
        [&](std::span<const llm::BatchRow>) {
          if (calls_ == 6) call_lost = calls_;
          return calls_ == 6;
        },
        {.can_truncate = can_truncate});
    for (std::uint64_t i = 1; i <= 6; ++i) post(of_session(std::to_string(i), job(i, "prompt " + std::to_string(i), 40)));
    run();
    EXPECT_EQ(calls_, call_lost);
    EXPECT_EQ(told_, 1);
    for (std::uint64_t i = 1; i <= 4; ++i) {
      const std::vector<Token> all = expected("prompt " + std::to_string(i), 40);
      const std::vector<Token>& sent = sinks_[i]->tokens;
      ASSERT_FALSE(sent.empty());
      EXPECT_TRUE(std::ranges::equal(sent, std::span(all).first(sent.size()))) << "what came before is right";
      EXPECT_EQ(eos(i).reason, FinishReason::error);
      EXPECT_EQ(eos(i).error->code, ErrorCode::runtime_decode);
    }
    for (std::uint64_t i = 5; i <= 6; ++i) EXPECT_EQ(error(i).code, ErrorCode::runtime_decode) << "it waited for a slot";
    post(job(7, "too late"));
    run();
    EXPECT_EQ(error(7).code, ErrorCode::runtime_decode);
    EXPECT_EQ(told_, 1);
    EXPECT_EQ(lane_->stats().queue_depth.value(), 0);
    EXPECT_EQ(lane_->stats().sequences_active.value(), 0);
  }
}

TEST_F(LostLaneTest, NothingIsSavedFromALostContext) {
  make_losing([&](std::span<const llm::BatchRow>) { return false; });
  post(of_session("s", job(1, "a prompt of a session")));
  run();
  ASSERT_TRUE(lane_->holds(SessionId{"s"}));
  lost_ = true;
  std::int64_t states = 0;
  context_->on_state = [&] { ++states; };
  bool was_called = false;
  lane_->post(CopyCommand{SessionId{"s"}, kv::GiveWay::at_once, [&] { was_called = true; }});
  run();
  EXPECT_TRUE(was_called);
  EXPECT_FALSE(lane_->holds(SessionId{"s"}));
  EXPECT_EQ(told_, 1) << "an idle lane tells it, too";
  lane_->close();
  lane_->cancel_all();
  EXPECT_EQ(states, 0);
}

}  // namespace
}  // namespace uma::engine
