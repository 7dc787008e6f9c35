// A lane as a whole: the text of its replies, and how its requests end.
#include <chrono>
#include <new>
#include <span>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "engine/lane/lane_test_support.h"

namespace uma::engine {
namespace {

TEST_F(LaneTest, StreamsWhatTheModelSays) {
  make({});
  post(job(1, "hello"));
  run();
  EXPECT_EQ(sinks_[1]->tokens, expected("hello"));
  EXPECT_EQ(eos(1).reason, FinishReason::length);
  EXPECT_EQ(eos(1).usage.prompt_tokens, 5);
  EXPECT_EQ(eos(1).usage.completion_tokens, 8);
  EXPECT_EQ(eos(1).usage.recomputed_tokens, 5);
}

TEST_F(LaneTest, ManySequencesDoNotTouchEachOther) {
  for (const bool unified : {false, true}) {
    make({.cells = 400, .sequences = 4, .unified = unified});
    const std::vector<std::string> prompts{"one", "another prompt", "the third of them", "four"};
    for (std::size_t i = 0; i < prompts.size(); ++i) post(job(i, prompts[i], 20));
    run();
    for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(sinks_[i]->tokens, expected(prompts[i], 20)) << unified << i;
  }
}

TEST_F(LaneTest, TellsWhenItComputedLastAndSinceWhenSomebodyWaits) {
  make({.sequences = 1});
  clock_.advance(std::chrono::seconds(1));
  const LaneStats& stats = lane_->stats();
  EXPECT_EQ(stats.last_call_us.value(), 0);
  post(job(0, "the first", 4));
  clock_.advance(std::chrono::seconds(1));
  const std::int64_t received_us = to_us(clock_.now());
  post(job(1, "the second", 4));
  while (stats.last_decode_us.value() == 0) step();
  EXPECT_EQ(stats.waiting_since_us.value(), received_us) << "one slot: the second waits";
  EXPECT_GE(stats.last_call_us.value(), stats.last_decode_us.value());
  EXPECT_GE(stats.last_decode_us.value(), received_us);
  run();
  EXPECT_EQ(stats.waiting_since_us.value(), 0);
}

TEST_F(LaneTest, CancelKeepsTheTokensSoFar) {
  make({});
  post(of_session("s", job(1, "hello", 40)));
  for (int i = 0; i < 4; ++i) lane_->step();
  const std::size_t before = sinks_[1]->tokens.size();
  lane_->post(CancelCommand{RequestId{1}});
  run();
  EXPECT_EQ(eos(1).reason, FinishReason::cancelled);
  EXPECT_EQ(results_.at(1).generated.size(), before);
  EXPECT_GT(before, 0u);
  EXPECT_TRUE(lane_->holds({"s"}));
}

TEST_F(LaneTest, ARunningRequestIsNotMeasuredAgainstItsDeadlineButAgainstItsTimeout) {
  make({});
  GenerationJob quick = job(1, "x", 30);
  quick.deadline = clock_.now() + std::chrono::milliseconds(5);
  quick.timeout = clock_.now() + std::chrono::milliseconds(20);
  post(std::move(quick));
  run();
  EXPECT_EQ(eos(1).reason, FinishReason::timeout);
  EXPECT_GT(results_.at(1).generated.size(), 3u);
}

TEST_F(LaneTest, ASlowConsumerLosesItsStreamAndNothingElse) {
  make({});
  GenerationJob slow = job(1, "slow", 30);
  sinks_[1]->tokens_max = 3;
  post(std::move(slow));
  post(job(2, "fast", 10));
  run();
  EXPECT_EQ(eos(1).reason, FinishReason::slow_consumer);
  EXPECT_EQ(sinks_[2]->tokens, expected("fast", 10));
}

TEST_F(LaneTest, WithoutStreamingTheWholeTextComesAtTheEnd) {
  make({});
  GenerationJob whole = job(1, "hello");
  whole.reply.stream = false;
  post(std::move(whole));
  run();
  EXPECT_TRUE(sinks_[1]->tokens.empty());
  std::string text;
  for (const Token token : expected("hello")) text += static_cast<char>(token);
  EXPECT_EQ(eos(1).text, text);
}

TEST_F(LaneTest, ProgressIsReportedWhereAsked) {
  make({.batch_rows_max = 16});
  GenerationJob asked = job(1, "a prompt that needs several chunks of prefill");
  asked.wants_progress = true;
  post(std::move(asked));
  run();
  EXPECT_GE(sinks_[1]->stages.size(), 2u);
}

TEST_F(LaneTest, AProgressReportThatThrowsIsLostAndNothingElse) {
  make({.sequences = 1});
  for (std::uint64_t id = 1; id <= 3; ++id) {
    GenerationJob asked = job(id, "one");
    asked.wants_progress = true;
    post(std::move(asked));
    sinks_[id]->throws_at_progress = true;
  }
  run();
  for (std::uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(sinks_[id]->tokens, expected("one"));
}

TEST_F(LaneTest, ASequenceThatThrowsEndsAndItsNeighbourSaysTheSame) {
  make({});
  post(job(1, "one"));
  post(job(2, "two"));
  sinks_[1]->throws_after = 3;
  run();
  EXPECT_EQ(sinks_[1]->tokens.size(), 3u);
  EXPECT_EQ(eos(1).reason, FinishReason::error);
  EXPECT_EQ(eos(1).error->code, ErrorCode::runtime_decode);
  EXPECT_EQ(sinks_[2]->tokens, expected("two"));
  EXPECT_EQ(lane_->stats().queue_depth.value(), 0);
}

TEST_F(LaneTest, WhatThrowsInNobodysNameEndsAllThatTheLaneHas) {
  LaneOptions options;
  bool throws = true;
  options.on_logits = [&](RequestId, std::span<const float>) {
    if (throws) throw std::bad_alloc();
  };
  make({}, options);
  for (std::uint64_t id = 1; id <= 6; ++id) post(job(id, "one"));
  run();
  for (std::uint64_t id = 1; id <= 6; ++id) {
    EXPECT_EQ(error(id).code, ErrorCode::runtime_decode);
  }
  throws = false;
  post(job(7, "one"));
  run();
  EXPECT_EQ(sinks_[7]->tokens, expected("one"));
  EXPECT_EQ(lane_->stats().queue_depth.value(), 0);
}

}  // namespace
}  // namespace uma::engine
