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

TEST_F(AdmissionTest, RequestsThatExpireTogetherAreToldTheirPlaces) {
  make({.sequences = 1});
  post(job(1, "first", 50));
  const TimePoint deadline = clock_.now() + std::chrono::milliseconds(10);
  for (std::uint64_t id = 2; id <= 5; ++id) {
    GenerationJob late = job(id, "one of several");
    late.deadline = deadline;
    post(std::move(late));
    step();
  }
  run();
  for (std::uint64_t id = 2; id <= 5; ++id) {
    EXPECT_TRUE(error(id).message.contains("position " + std::to_string(id - 1))) << error(id).message;
  }
}

TEST_F(AdmissionTest, SequentialIsTheOrderOfArrival) {
  LaneOptions options;
  options.policy.policy = sched::Policy::sequential;
  make({.cells = 800, .sequences = 1}, std::move(options));
  post(job(1, "first", 20));
  post(job(2, std::string(300, 'x'), 2));
  post(job(3, "a short question", 2));
  while (!results_.contains(3)) step();
  EXPECT_TRUE(results_.contains(2)) << "though the third has waited longer for its size";
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

// The replies of one tenant do not keep another one waiting that asks now and then.
TEST_F(AdmissionTest, ATenantWithManyRequestsLeavesASlotToWhoAskedLately) {
  make({.cells = 2000, .sequences = 4, .row_cost = std::chrono::milliseconds(1)});
  post(of_tenant("other", job(1, "a question", 3)));
  while (!results_.contains(1)) step();
  for (std::uint64_t id = 10; id < 30; ++id) post(of_tenant("many", job(id, "one of many " + std::to_string(id), 150)));
  GenerationJob nightly = job(40, "report", 150);
  nightly.is_background = true;
  post(of_tenant("other", std::move(nightly)));
  while (sinks_[12]->tokens.size() < 20) step();
  EXPECT_FALSE(sinks_[40]->tokens.empty()) << "it runs in the slot that is kept";
  EXPECT_TRUE(sinks_[13]->tokens.empty());
  post(of_tenant("other", job(2, "the next one", 3)));
  while (!results_.contains(2)) step();
  EXPECT_EQ(results_.size(), 2u) << "none of the others has ended";
  EXPECT_EQ(lane_->stats().preemptions_total.value(), 1u) << "the report's";
  run();
}

// A request that is passed over does not lose the time in which its state can be read from disk.
TEST_F(StoreLaneTest, StatesOfATenantThatHasItsShareAreRead) {
  make_with_store({.cells = 2000, .sequences = 4, .row_cost = std::chrono::milliseconds(1)});
  (void)ask(1, kPrompt, "s", "many");
  std::vector<Token> chain = chain_after(1);
  chain.push_back('!');
  for (std::uint64_t id = 2; id <= 5; ++id) (void)ask(id, std::string(100, char(48 + id)), std::to_string(id), "many");
  (void)ask(6, "a question", "", "other");
  store_.limit_memory({.at_rest = 0, .in_all = 1 << 20});
  work_on_disk();
  ASSERT_EQ(store_.states_of(SessionId{"s"}).tier, Tier::cold);
  store_.limit_memory({.at_rest = 1 << 20, .in_all = 1 << 20});
  for (std::uint64_t id = 10; id < 13; ++id) {
    post(of_tenant("many", job(id, "one of many " + std::to_string(id), 200)));
  }
  while (sinks_[12]->tokens.empty()) step();
  post(of_tenant("many", next_turn(20, chain, 2)));
  step();
  work_on_disk();
  EXPECT_EQ(store_.states_of(SessionId{"s"}).tier, Tier::warm);
  EXPECT_TRUE(sinks_[20]->tokens.empty()) << "the fourth slot is kept";
  run();
  EXPECT_EQ(eos(20).usage.reused_tokens, static_cast<std::int32_t>(chain.size()) - 2);
}

TEST_F(AdmissionTest, ReusedTokensAreNoWork) {
  make({.cells = 900, .sequences = 3});
  const std::vector<Token> history = run_turn(std::string(200, 'h'));
  const std::string agent;  // The history's tenant.
  post(of_tenant(agent, job(10, "a reply that goes on", 300)));
  post(of_tenant("other", job(11, std::string(100, 'o'), 300)));
  while (sinks_[11]->tokens.empty()) step();
  std::vector<Token> turn = history;
  turn.push_back('!');
  post(of_tenant(agent, next_turn(12, turn, 2)));
  while (!results_.contains(12)) step();
  post(of_tenant("other", job(13, "a question of the other", 2)));
  post(of_tenant(agent, job(14, "a question of the agent", 2)));
  while (!results_.contains(13) && !results_.contains(14)) step();
  EXPECT_TRUE(results_.contains(14)) << "less was computed for the agent";
  run();
}

TEST_F(AdmissionTest, AShortRequestPassesLongOnesThatHaveNotWaitedLongForTheirSize) {
  make({.cells = 4000, .sequences = 1, .row_cost = std::chrono::milliseconds(1)});
  post(job(1, "the first", 100));
  for (std::uint64_t id = 2; id <= 4; ++id) post(job(id, std::string(1000, 'p'), 1));
  while (sinks_[1]->tokens.size() < 50) step();
  post(job(5, "a question", 1));
  while (!results_.contains(5)) step();
  EXPECT_FALSE(results_.contains(2));
  run();
  EXPECT_EQ(eos(2).reason, FinishReason::length);
}

using StoreAdmissionTest = StoreLaneTest;

TEST_F(StoreAdmissionTest, AConversationsNextTurnCountsOnlyItsNewTokens) {
  make_with_store({.cells = 4000, .sequences = 2, .row_cost = std::chrono::milliseconds(1)});
  const std::vector<Token> chain = run_turn(std::string(1000, 'h'));
  post(job(2, "one", 100));
  post(job(3, "two", 100));
  post(job(4, std::string(1000, 'p'), 1));
  while (sinks_[2]->tokens.size() < 50) step();
  post(next_turn(5, chain, 1));
  while (!results_.contains(5)) step();
  EXPECT_FALSE(results_.contains(4));
}

// Short requests arrive faster than they can be served, and each finds that the long one has waited longer for its size.
TEST_F(AdmissionTest, ALongRequestIsNotStarvedByShortOnes) {
  make({.cells = 4000, .sequences = 1, .row_cost = std::chrono::milliseconds(1)});
  post(job(1, "the first", 10));
  post(job(2, std::string(1000, 'p'), 1));
  std::uint64_t id = 3;
  for (int i = 0; i < 20'000 && !results_.contains(2); ++i) {
    if (lane_->stats().queue_depth.value() < 10) post(job(id++, "a question", 10));
    step();
  }
  ASSERT_TRUE(results_.contains(2));
  EXPECT_GT(results_.size(), 5u) << "some were served before it";
}

// A pool of cells in which a long reply runs and the prompt of request 2 does not fit beside it.
class PoolAdmissionTest : public AdmissionTest {
 protected:
  void start_long_reply(std::int32_t tokens_max = 100) {
    make({.cells = 120, .sequences = 4, .unified = true, .row_cost = std::chrono::milliseconds(200)});
    post(job(1, "long reply", tokens_max));
    while (sinks_[1]->tokens.size() < 5) step();
    post(job(2, kLarge, 3));
  }
  double waited_ms(TimePoint since) { return to_ms(clock_.now() - since); }

  const std::string kLarge = std::string(110, 'p');
};

TEST_F(PoolAdmissionTest, SmallRequestsPassALargeOneThatHasNoCellsYet) {
  start_long_reply();
  post(job(3, "short", 3));
  while (!results_.contains(3)) step();
  EXPECT_FALSE(results_.contains(1) || results_.contains(2));
  run();
  EXPECT_EQ(sinks_[2]->tokens, expected(kLarge, 3));
}

TEST_F(PoolAdmissionTest, ALongReplyGivesItsCellsToARequestThatHasWaitedForThem) {
  start_long_reply();
  const TimePoint asked = clock_.now();
  while (!results_.contains(2)) step();
  EXPECT_GE(waited_ms(asked), kTurnMs);
  EXPECT_FALSE(results_.contains(1)) << "it is swapped out and goes on afterwards";
  EXPECT_EQ(lane_->stats().preemptions_total.value(), 1u);
  run();
  EXPECT_EQ(sinks_[1]->tokens, expected("long reply", 100));
  EXPECT_EQ(sinks_[2]->tokens, expected(kLarge, 3));
}

TEST_F(PoolAdmissionTest, ALargeRequestIsNotOvertakenForEver) {
  start_long_reply();
  std::uint64_t id = 3;
  for (int i = 0; i < 2000 && !results_.contains(2); ++i) {
    if (lane_->stats().queue_depth.value() < 3) post(job(id++, "short", 3));
    step();
  }
  EXPECT_TRUE(results_.contains(2));
  EXPECT_GT(id, 10u) << "others were served meanwhile";
}

TEST_F(PoolAdmissionTest, TwoLongRepliesThatDoNotFitTogetherTakeTurns) {
  start_long_reply();
  post(job(3, std::string(60, 'q'), 55));
  while (!results_.contains(1) || !results_.contains(3)) step();
  run();
  EXPECT_EQ(sinks_[1]->tokens, expected("long reply", 100));
  EXPECT_EQ(sinks_[3]->tokens, expected(std::string(60, 'q'), 55));
}

TEST_F(PoolAdmissionTest, ARequestThatWaitedForCellsComesBeforeThoseThatHadTheirTurn) {
  start_long_reply();
  post(job(3, std::string(60, 'q'), 40));
  while (lane_->stats().preemptions_total.value() == 0) step();
  post(job(4, "small", 3));
  while (!results_.contains(2) || !results_.contains(3)) step();
  EXPECT_FALSE(results_.contains(1)) << "its second turn is after them";
  EXPECT_TRUE(results_.contains(4)) << "which may pass them all";
  run();
  EXPECT_EQ(sinks_[1]->tokens, expected("long reply", 100));
}

TEST_F(PoolAdmissionTest, BackgroundPromptsDoNotTakeEachOthersCells) {
  make({.cells = 120, .sequences = 4, .unified = true, .row_cost = std::chrono::milliseconds(200)});
  for (std::uint64_t id = 1; id <= 2; ++id) {
    GenerationJob nightly = job(id, kLarge, 5);
    nightly.is_background = true;
    post(std::move(nightly));
  }
  run();
  EXPECT_EQ(lane_->stats().preemptions_total.value(), 0u);
}

TEST_F(PoolAdmissionTest, TokensThatARunningSequenceSharesAreCountedOnce) {
  make({.cells = 140, .sequences = 4, .unified = true});
  const std::string instructions(60, 'p');
  (void)run_turn(instructions + " first x");
  post(job(2, instructions + " other", 40));
  while (sinks_[2]->tokens.size() < 5) step();
  std::vector<Token> longer = chain_after(1);
  longer.push_back('y');
  post(next_turn(3, longer, 4));
  while (!results_.contains(3)) step();
  EXPECT_FALSE(results_.contains(2)) << "both fit";
  EXPECT_EQ(lane_->stats().preemptions_total.value(), 0u);
  run();
}

// A reply that was swapped out and lacks cells keeps no slot from another tenant's request that fits.
TEST_F(PoolAdmissionTest, SwappedOutRepliesKeepNoSlot) {
  make({.cells = 160, .sequences = 4, .unified = true, .row_cost = std::chrono::milliseconds(1)});
  for (std::uint64_t id = 1; id <= 4; ++id) post(of_tenant("many", job(id, "a long reply " + std::to_string(id), 60)));
  while (lane_->stats().preemptions_total.value() == 0) step();
  post(of_tenant("other", job(10, "?", 2)));
  while (!results_.contains(10)) step();
  EXPECT_EQ(results_.size(), 1U);
  run();
}

TEST_F(PoolAdmissionTest, AReplyWhoseStateCannotBeSavedIsNotInterrupted) {
  start_long_reply();
  context_->fail_state = true;
  while (!results_.contains(1)) step();
  EXPECT_FALSE(results_.contains(2));
  EXPECT_EQ(lane_->stats().preemptions_total.value(), 0u);
  run();
  EXPECT_EQ(sinks_[2]->tokens, expected(kLarge, 3));
}

TEST_F(PoolAdmissionTest, ARequestThatDoesNotFitEvictsNothing) {
  make({.cells = 120, .sequences = 4, .unified = true, .row_cost = std::chrono::milliseconds(20)});
  (void)run_turn("a session whose tokens stay");
  post(job(2, "long reply", 60));
  while (sinks_[2]->tokens.size() < 5) step();
  const std::int64_t used = lane_->stats().cells_used.value();
  post(job(3, kLarge, 3));
  for (int i = 0; i < 5; ++i) step();
  EXPECT_GE(lane_->stats().cells_used.value(), used);
  run();
}

}  // namespace
}  // namespace uma::engine
