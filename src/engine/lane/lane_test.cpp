// A lane as a whole: the text of its replies, and how its requests end.
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
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

// --- Many who wait

TEST_F(LaneTest, AStepTakesABoundedNumberOfCommandsInTheirOrder) {
  make({});
  for (std::uint64_t id = 1; id <= 300; ++id) post(job(id, "one", 2));
  lane_->post(CancelCommand{RequestId{300}});
  EXPECT_TRUE(lane_->step().did_work);
  EXPECT_EQ(lane_->stats().requests_total.value(), 128u);
  EXPECT_FALSE(lane_->is_idle());
  EXPECT_FALSE(results_.contains(300));
  run();
  EXPECT_EQ(results_.size(), 300u);
  EXPECT_EQ(eos(300).reason, FinishReason::cancelled) << "it was known when it was cancelled";
  for (std::uint64_t id = 1; id < 300; ++id) EXPECT_EQ(sinks_[id]->tokens, expected("one", 2)) << id;
  EXPECT_EQ(lane_->stats().queue_depth.value(), 0);
}

TEST_F(LaneTest, AStreamGoesOnWhileManyAreCancelled) {
  make({.cells = 1024, .sequences = 1});
  post(job(1, "a stream", 60));
  while (sinks_[1]->tokens.empty()) step();
  for (std::uint64_t id = 2; id <= 1000; ++id) post(job(id, "one", 2));
  for (std::uint64_t id = 2; id <= 1000; ++id) lane_->post(CancelCommand{RequestId{id}});
  for (int steps = 0; results_.size() < 999; ++steps) {
    ASSERT_LT(steps, 20);
    const std::size_t ended = results_.size();
    const std::size_t tokens = sinks_[1]->tokens.size();
    step();
    EXPECT_LE(results_.size() - ended, 128u);
    EXPECT_EQ(sinks_[1]->tokens.size(), tokens + 1);
  }
  run();
  EXPECT_EQ(sinks_[1]->tokens, expected("a stream", 60));
  EXPECT_EQ(lane_->stats().queue_depth.value(), 0);
}

TEST_F(LaneTest, ALaneThatEndsAnswersAllWhoWereNotTakenYet) {
  make({});
  for (std::uint64_t id = 1; id <= 300; ++id) post(job(id, "one"));
  lane_->close();
  lane_->cancel_all();
  EXPECT_EQ(results_.size(), 300u);
  EXPECT_TRUE(lane_->is_idle());
}

class SequenceListTest : public ::testing::Test {
 protected:
  Sequence& add(std::uint64_t id, const std::string& session = "") {
    GenerationJob job;
    job.id = RequestId{id};
    job.session = SessionId{session};
    job.tokens = {'x'};
    auto sequence = std::make_unique<Sequence>(std::move(job), vocab_, std::span<const Token>());
    Sequence& added = *sequence;
    list_.add(std::move(sequence));
    return added;
  }
  static std::vector<std::uint64_t> ids_of(std::span<Sequence* const> sequences) {
    std::vector<std::uint64_t> ids;
    for (const Sequence* sequence : sequences) ids.push_back(sequence->job.id.value);
    return ids;
  }
  using Ids = std::vector<std::uint64_t>;

  testing::FakeVocab vocab_;
  SequenceList list_;
};

TEST_F(SequenceListTest, ThoseWhoRunAndThoseWhoWaitKeepTheOrderOfArrival) {
  for (const std::uint64_t id : {7, 3, 9, 5}) add(id);
  list_.set_running(*list_.find(RequestId{9}), 0);
  list_.set_running(*list_.find(RequestId{7}), 1);
  EXPECT_EQ(ids_of(list_.running()), (Ids{7, 9}));
  EXPECT_EQ(ids_of(list_.waiting()), (Ids{3, 5}));
  list_.set_waiting(*list_.find(RequestId{7}));
  EXPECT_EQ(ids_of(list_.running()), (Ids{9}));
  EXPECT_EQ(ids_of(list_.waiting()), (Ids{7, 3, 5}));
  list_.check_invariants();
}

TEST_F(SequenceListTest, WhoHasFinishedIsFoundUntilItIsRemoved) {
  for (const std::uint64_t id : {1, 2, 3}) add(id, id == 2 ? "other" : "s");
  Sequence& first = *list_.find(RequestId{1});
  list_.set_finished(first);
  list_.set_finished(first);
  EXPECT_EQ(list_.find(RequestId{1}), &first);
  EXPECT_EQ(ids_of(list_.find_of(SessionId{"s"})), (Ids{3}));
  EXPECT_EQ(list_.size(), 3u);
  list_.check_invariants();
  list_.remove_finished();
  EXPECT_EQ(list_.find(RequestId{1}), nullptr);
  EXPECT_EQ(list_.size(), 2u);
  for (const std::uint64_t id : {2, 3}) {
    Sequence& left = *list_.find(RequestId{id});
    EXPECT_EQ(&list_.at(list_.index_of(left)), &left);
  }
  EXPECT_TRUE(list_.find_of(SessionId{}).empty());
  list_.check_invariants();
}

TEST_F(SequenceListTest, ALaterRequestWithTheSameIdIsNotForgottenWithTheFirst) {
  list_.set_finished(add(1));
  Sequence& again = add(1);
  list_.remove_finished();
  EXPECT_EQ(list_.find(RequestId{1}), &again);
}

}  // namespace
}  // namespace uma::engine
