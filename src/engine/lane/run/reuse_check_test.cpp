// Cached values that are wrong or not finite are found and computed again.
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/lane/lane_test_support.h"

namespace uma::engine {
namespace {

using ReuseCheckTest = LaneTest;

LaneOptions verifying(std::int32_t every) {
  LaneOptions options;
  options.verify_every = every;
  return options;
}

// Values of a session that are not finite, in a slot or stored, in either layout: its reply is still right, and so are later
// sequences in the same cells and sequences beside it.
TEST_F(ReuseCheckTest, CellsThatAreNotFiniteAreComputedAnewAndSpoilNothing) {
  for (const bool unified : {false, true}) {
    SCOPED_TRACE(unified);
    kv::StateStore store({.warm_bytes_max = 100'000}, nullptr, clock_);
    LaneOptions options;
    options.store = &store;
    options.stored_tokens_min = 4;
    make({.cells = unified ? 320 : 640, .sequences = 4, .unified = unified}, options);
    std::vector<Token> chain = run_turn("a turn of some length", 8);
    chain.push_back('?');
    post(job(3, "another that runs", 30));
    for (int i = 0; i < 8; ++i) step();
    context_->spoil(0, 3);
    post(next_turn(2, chain));
    run();
    EXPECT_EQ(sinks_[2]->tokens, fake_continuation(options_, chain, 8));
    EXPECT_EQ(sinks_[3]->tokens, fake_continuation(options_, fake_tokens("another that runs"), 30));
    EXPECT_EQ(eos(2).usage.reuse_reason, "refused");
    EXPECT_EQ(eos(2).usage.reused_tokens, 0);
    EXPECT_EQ(eos(2).usage.recomputed_tokens, eos(2).usage.prompt_tokens);
    EXPECT_GE(lane_->stats().not_finite_total.value(), 1u);
    for (std::uint64_t id = 4; id < 12; ++id) post(job(id, "and more " + std::to_string(id), 8));
    run();
    for (std::uint64_t id = 4; id < 12; ++id) {
      EXPECT_EQ(sinks_[id]->tokens, expected("and more " + std::to_string(id)));
    }
    EXPECT_EQ(lane_->stats().requests_failed_total.value(), 0u);
  }
}

TEST_F(ReuseCheckTest, WhatIsNotFiniteIsNotKeptByOneThatMakesRoomInTheSameStep) {
  make({.cells = 320, .sequences = 4, .unified = true});
  GenerationJob stream = job(1, "a stream", 40);
  stream.is_background = true;
  post(std::move(stream));
  while (sinks_[1]->tokens.size() < 5) step();
  post(job(2, "a prompt beside it", 5));
  // The stream's row is spoiled. Then the prompt needs the cells of the stream, which is swapped out.
  int calls = 0;
  context_->fault = [&calls](std::span<const llm::BatchRow>) {
    ++calls;
    return calls == 1 ? FakeFault::not_finite : calls == 2 ? FakeFault::out_of_cells : FakeFault::none;
  };
  run();
  EXPECT_GE(calls, 2);
  EXPECT_EQ(lane_->stats().not_finite_total.value(), 1u) << "what was kept of it did not come back";
  EXPECT_EQ(sinks_[1]->tokens, expected("a stream", 40));
  EXPECT_EQ(sinks_[2]->tokens, expected("a prompt beside it", 5));
}

TEST_F(ReuseCheckTest, AModelWhoseNumbersAreNeverFiniteEndsRepliesWithAnError) {
  make({.cells = 640, .sequences = 4});
  context_->fault = [](std::span<const llm::BatchRow>) { return FakeFault::not_finite; };
  post(job(1, "hello", 8));
  run();
  EXPECT_EQ(error(1).code, ErrorCode::runtime_decode);
  EXPECT_EQ(lane_->stats().not_finite_total.value(), 2u) << "once more from its tokens, then no more";
  context_->fault = nullptr;
  post(job(2, "hello", 8));
  run();
  EXPECT_EQ(sinks_[2]->tokens, expected("hello")) << "nothing is left of it";
}

TEST_F(ReuseCheckTest, AWrongReuseIsFoundAndComputedAgain) {
  for (const bool unified : {false, true}) {
    for (const std::int32_t every : {0, 1}) {
      make({.cells = unified ? 320 : 640, .sequences = 4, .unified = unified, .has_spare = every > 0}, verifying(every));
      std::vector<Token> chain = run_turn("a turn of some length", 8);
      chain.push_back('?');
      context_->damage(0, 3);
      post(next_turn(2, chain));
      run();
      const bool is_right = sinks_[2]->tokens == fake_continuation(options_, chain, 8);
      EXPECT_EQ(is_right, every == 1) << "a damaged cell changes what is said";
      EXPECT_EQ(lane_->stats().reuses_wrong_total.value(), every == 1 ? 1u : 0u);
      EXPECT_EQ(eos(2).usage.reuse_reason, every == 1 ? "refused" : "hot");
      EXPECT_EQ(eos(2).usage.reused_tokens + eos(2).usage.recomputed_tokens, eos(2).usage.prompt_tokens);
      EXPECT_EQ(lane_->stats().cells_used.value(), static_cast<std::int64_t>(chain.size()) + 7);
    }
  }
}

TEST_F(ReuseCheckTest, AStoredStateThatIsWrongIsThrownAway) {
  kv::StateStore store({.warm_bytes_max = 100'000}, nullptr, clock_);
  LaneOptions options = verifying(1);
  options.store = &store;
  options.stored_tokens_min = 4;
  options.eviction = kv::EvictionOrder::lru;
  make({.cells = 160, .sequences = 2, .has_spare = true}, options);
  std::vector<Token> chain = run_turn("a turn of some length", 8);
  context_->damage(0, 3);
  for (std::uint64_t id = 2; id < 4; ++id) {  // These take both slots.
    GenerationJob other = job(id, "something else " + std::to_string(id), 8);
    other.session = {std::to_string(id)};
    post(std::move(other));
    run();
  }
  ASSERT_EQ(store.states_of({"s"}).tier, Tier::warm);
  chain.push_back('?');
  // Not of the session, because the session's state leaves the store when it is restored.
  GenerationJob another = job(4, "", 8);
  another.tokens = chain;
  post(std::move(another));
  run();
  EXPECT_EQ(sinks_[4]->tokens, fake_continuation(options_, chain, 8));
  EXPECT_EQ(eos(4).usage.reuse_reason, "refused");
  EXPECT_EQ(lane_->stats().reuses_wrong_total.value(), 1u);
  EXPECT_EQ(store.states_of({"s"}).tier, Tier::none);
}

TEST_F(ReuseCheckTest, ARequestThatLeavesWhileItsReuseIsVerifiedLeavesNothingBehind) {
  make({.cells = 640, .sequences = 2, .batch_rows_max = 8, .unified = true, .has_spare = true}, verifying(1));
  const std::string prompt(100, 'p');
  std::vector<Token> chain = run_turn(prompt, 8);
  chain.push_back('?');
  const std::int64_t cells = lane_->stats().cells_used.value();
  post(next_turn(2, chain));
  for (int i = 0; i < 100 && lane_->stats().cells_used.value() == cells; ++i) step();
  ASSERT_GT(lane_->stats().cells_used.value(), cells) << "the spare sequence has some";
  lane_->post(CancelCommand{RequestId{2}});
  run();
  EXPECT_EQ(eos(2).reason, FinishReason::cancelled);
  EXPECT_EQ(lane_->stats().cells_used.value(), cells);
  EXPECT_EQ(lane_->stats().reuses_verified_total.value(), 0u);
}

// Verification uses only free cells.
TEST_F(ReuseCheckTest, AVerificationGivesItsCellsToRequests) {
  make({.cells = 160, .sequences = 3, .batch_rows_max = 8, .unified = true, .has_spare = true}, verifying(1));
  const std::string prompt(60, 'p');
  std::vector<Token> chain = run_turn(prompt, 4);
  chain.push_back('?');
  post(next_turn(2, chain));
  step();
  post(job(3, std::string(70, 'q'), 8));
  run();
  EXPECT_EQ(sinks_[2]->tokens, fake_continuation(options_, chain, 8));
  EXPECT_EQ(sinks_[3]->tokens, expected(std::string(70, 'q')));
  EXPECT_EQ(lane_->stats().preemptions_total.value(), 0u);
  EXPECT_EQ(lane_->stats().requests_failed_total.value(), 0u);
}

}  // namespace
}  // namespace uma::engine
