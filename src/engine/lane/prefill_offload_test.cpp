// Long prompts are computed in a prefill lane beside the streams.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>

#include <gtest/gtest.h>

#include "engine/lane/lane_test_support.h"

namespace uma::engine {
namespace {

class PrefillOffloadTest : public LaneTest {
 protected:
  // A lane with a prefill lane. Prompts that take longer than a millisecond are offloaded.
  void make_both(FakeOptions options) {
    FakeOptions one = options;
    one.clock = &clock_;
    one.sequences = 1;
    one.cells = std::min(FakeContext(options).shape().sequence_cells_max, prefill_cells_);
    auto prefill = std::make_unique<FakeContext>(one);
    prefill_context_ = prefill.get();
    LaneOptions lane_options;
    lane_options.threads = 4;
    lane_options.threads_beside_prefill = 1;
    lane_options.target_tbt_ms = 1.5;
    make(options, std::move(lane_options), std::move(prefill));
  }

  // Starts a stream and a prompt that is offloaded.
  void start_both(std::int32_t stream_tokens = 40) {
    post(job(1, "a stream", stream_tokens));
    while (sinks_[1]->tokens.size() < 3) step();
    post(job(2, kLong, 6));
    lane_->step();
  }

  void run_both() {
    for (int i = 0; i < 10'000 && !lane_->is_idle(); ++i) {
      const bool prefilled = lane_->prefill_lane()->step().did_work;
      const StepOutcome outcome = lane_->step();
      lane_->check_invariants();
      lane_->prefill_lane()->check_invariants();
      if (!prefilled && !outcome.did_work && !lane_->is_idle()) clock_.advance(std::chrono::milliseconds(1));
    }
    ASSERT_TRUE(lane_->is_idle());
  }

  // Makes lanes where moving a state takes time, and a conversation of 457 tokens. Returns its next prompt of 150 more.
  std::vector<Token> make_with_long_conversation() {
    make_both({.cells = 1600, .sequences = 4, .unified = true, .state_cost = std::chrono::microseconds(50)});
    post(of_session("s", job(1, std::string(450, 'x'))));
    lane_->step();
    run_both();
    std::vector<Token> chain = chain_after(1);
    const std::vector<Token> added = fake_tokens(std::string(150, 'y'));
    chain.insert(chain.end(), added.begin(), added.end());
    return chain;
  }

  const std::string kLong = std::string(90, 'x') + "what is this?";
  FakeContext* prefill_context_ = nullptr;
  std::int32_t prefill_cells_ = 1'000'000;
};

TEST_F(PrefillOffloadTest, ALongPromptIsComputedBesideAStream) {
  make_both({.cells = 800, .sequences = 4});
  start_both();
  EXPECT_TRUE(lane_->prefill_lane()->step().did_work);
  EXPECT_EQ(prefill_context_->threads(), 3);
  const std::size_t before = sinks_[1]->tokens.size();
  for (int i = 0; i < 5; ++i) lane_->step();
  EXPECT_EQ(sinks_[1]->tokens.size(), before + 5) << "the stream goes on, a token a tick";
  EXPECT_EQ(context_->threads(), 1);
  run_both();
  EXPECT_EQ(sinks_[1]->tokens, expected("a stream", 40));
  EXPECT_EQ(sinks_[2]->tokens, expected(kLong, 6));
  EXPECT_EQ(lane_->stats().handover.count(), 1u);
  EXPECT_EQ(context_->sequence_length(1), 0) << "one-shot requests leave nothing behind";
}

TEST_F(PrefillOffloadTest, StreamsHaveATickBeforeAComputedPromptJoinsThem) {
  make_both({.cells = 800, .sequences = 4});
  start_both();
  while (lane_->stats().handover.count() == 0) {
    (void)lane_->prefill_lane()->step();
    const std::size_t before = sinks_[1]->tokens.size();
    step();
    if (lane_->stats().handover.count() == 0) continue;
    EXPECT_TRUE(sinks_[2]->tokens.empty()) << "its first token waits for their tick";
    EXPECT_EQ(sinks_[1]->tokens.size(), before + 1);
  }
  step();
  EXPECT_FALSE(sinks_[2]->tokens.empty());
  run_both();
  EXPECT_EQ(sinks_[2]->tokens, expected(kLong, 6));
}

TEST_F(PrefillOffloadTest, ACancelledPromptLeavesBothLanesEmpty) {
  make_both({.cells = 800, .sequences = 4});
  start_both();
  EXPECT_TRUE(lane_->prefill_lane()->step().did_work);
  lane_->post(CancelCommand{RequestId{2}});
  lane_->step();
  EXPECT_EQ(eos(2).reason, FinishReason::cancelled);
  lane_->prefill_lane()->step();
  EXPECT_EQ(prefill_context_->sequence_length(0), 0);
  run_both();
  EXPECT_EQ(sinks_[1]->tokens, expected("a stream", 40));
}

TEST_F(PrefillOffloadTest, AFailedPromptIsComputedInTheContextItself) {
  make_both({.cells = 800, .sequences = 4});
  prefill_context_->fault = [](std::span<const llm::BatchRow>) { return FakeFault::decode_error; };
  start_both();
  run_both();
  EXPECT_EQ(sinks_[2]->tokens, expected(kLong, 6));
  EXPECT_EQ(lane_->stats().handover.count(), 0u);
}

TEST_F(PrefillOffloadTest, AShorterPromptTakesThePlaceOfALongerOne) {
  make_both({.cells = 1600, .sequences = 4});
  post(job(1, "a stream", 60));
  while (sinks_[1]->tokens.size() < 3) step();
  const std::string longest(350, 'y');
  post(job(2, longest, 6));
  lane_->step();
  EXPECT_TRUE(lane_->prefill_lane()->step().did_work);
  EXPECT_GT(prefill_context_->sequence_length(0), 0);
  post(job(3, kLong, 6));
  lane_->step();
  while (sinks_[3]->tokens.empty()) {
    lane_->prefill_lane()->step();
    lane_->prefill_lane()->check_invariants();
    lane_->step();
  }
  EXPECT_TRUE(sinks_[2]->tokens.empty());
  run_both();
  EXPECT_EQ(sinks_[2]->tokens, expected(longest, 6));
  EXPECT_EQ(sinks_[3]->tokens, expected(kLong, 6));
}

TEST_F(PrefillOffloadTest, TheCachedBeginningLeavesInPiecesAndStaysInTheSlot) {
  const std::vector<Token> chain = make_with_long_conversation();
  post(job(2, "a stream", 60));
  while (sinks_[2]->tokens.size() < 3) step();
  const std::int64_t loaded_before = context_->cells_loaded;
  post(next_turn(3, chain, 6));
  int ticks = 0;
  while (!lane_->prefill_lane()->step().did_work) {
    const std::size_t before = sinks_[2]->tokens.size();
    lane_->step();
    lane_->check_invariants();
    ASSERT_EQ(sinks_[2]->tokens.size(), before + 1) << "the stream goes on";
    ASSERT_LT(++ticks, 10);
  }
  EXPECT_EQ(ticks, 3) << "457 tokens in pieces of 200, 10 ms each";
  run_both();
  EXPECT_EQ(sinks_[2]->tokens, expected("a stream", 60));
  EXPECT_EQ(results_.at(3).generated, fake_continuation(options_, chain, 6));
  EXPECT_EQ(context_->cells_loaded - loaded_before, std::int64_t(chain.size()) - 400)
      << "the first two pieces are there already";
}

TEST_F(PrefillOffloadTest, ARequestIsCancelledWhileItsStateLeaves) {
  const std::vector<Token> chain = make_with_long_conversation();
  post(job(2, "a stream", 20));
  while (sinks_[2]->tokens.size() < 3) step();
  post(next_turn(3, chain, 6));
  lane_->step();
  lane_->post(CancelCommand{RequestId{3}});
  run_both();
  EXPECT_EQ(eos(3).reason, FinishReason::cancelled);
  EXPECT_EQ(sinks_[2]->tokens, expected("a stream", 20));
  EXPECT_FALSE(lane_->prefill_lane()->step().did_work) << "it never had the prompt";
}

TEST_F(PrefillOffloadTest, TheRestOfAPromptThatIsLongerThanThePrefillContextIsComputedInTheLane) {
  prefill_cells_ = 80;
  make_both({.cells = 800, .sequences = 4});
  start_both();
  run_both();
  EXPECT_EQ(sinks_[1]->tokens, expected("a stream", 40));
  EXPECT_EQ(sinks_[2]->tokens, expected(kLong, 6));
  EXPECT_EQ(lane_->stats().handover.count(), 1u);
}

}  // namespace
}  // namespace uma::engine
