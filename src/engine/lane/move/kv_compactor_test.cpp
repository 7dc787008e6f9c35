// Idle conversations beside streams: when they leave the context, and how the streams' cells move into the place of free ones.
#include <chrono>
#include <string>

#include <gtest/gtest.h>

#include "engine/lane/lane_test_support.h"

namespace uma::engine {
namespace {

class KvCompactorTest : public StoreLaneTest {
 protected:
  // A conversation of about 150 tokens is idle.
  void make_with_idle(Duration skip_cost = std::chrono::microseconds(20), std::int32_t skipped_cells_max = 16) {
    LaneOptions options;
    options.store = &store_;
    options.stored_tokens_min = 4;
    options.skipped_cells_max = skipped_cells_max;
    make({.cells = 400, .sequences = 4, .unified = true, .state_cost = std::chrono::microseconds(100), .skip_cost = skip_cost},
         std::move(options));
    ask(1, kLong, "idle");
  }
  void stream(std::uint64_t id, std::int32_t tokens) { post(of_session("stream", job(id, "and now", tokens))); }
  [[nodiscard]] std::uint64_t stored() const { return lane_->stats().idle_stored_total.value(); }
  [[nodiscard]] std::uint64_t moved() const { return lane_->stats().moved_cells_total.value(); }

  const std::string kLong = std::string(100, 'x') + " is the beginning of a long conversation";
};

TEST_F(KvCompactorTest, AnIdleConversationLeavesTheContextOnceItHasCostAStreamAsMuch) {
  make_with_idle();
  stream(2, 200);
  run();
  EXPECT_EQ(sinks_[2]->tokens, expected("and now", 200));
  EXPECT_EQ(stored(), 1u);
  EXPECT_EQ(store_.states_of(SessionId{"idle"}).tier, Tier::warm);
  EXPECT_EQ(ask(3, kLong, "idle").usage.tier, Tier::warm);
}

TEST_F(KvCompactorTest, TheStreamsCellsMoveToThePlaceOfFreeOnes) {
  make_with_idle();
  stream(2, 200);
  run();
  EXPECT_GT(moved(), 0u);
  EXPECT_EQ(context_->top(), chain_after(2).size() - 1) << "no cell is free before the last one";
}

TEST_F(KvCompactorTest, AShortConversationStays) {
  make_with_idle(std::chrono::microseconds(20), 200);
  stream(2, 200);
  run();
  EXPECT_EQ(stored() + moved(), 0u);
  EXPECT_EQ(ask(3, kLong, "idle").usage.tier, Tier::hot);
}

TEST_F(KvCompactorTest, ItStaysWhereSkippedCellsCostNothing) {
  make_with_idle(Duration(0));
  stream(2, 200);
  run();
  EXPECT_EQ(stored() + moved(), 0u);
}

TEST_F(KvCompactorTest, ItStaysWhereMemoryHasNoRoom) {
  make_with_idle();
  store_.limit_memory({.at_rest = 0, .in_all = 100});
  stream(2, 200);
  run();
  EXPECT_EQ(sinks_[2]->tokens, expected("and now", 200));
  EXPECT_EQ(stored(), 0u);
  EXPECT_EQ(ask(3, kLong, "idle").usage.tier, Tier::hot);
}

TEST_F(KvCompactorTest, ItsNextTurnComesWhileItIsBeingStored) {
  make_with_idle();
  context_->cells_saved = 0;
  stream(2, 200);
  while (context_->cells_saved == 0) step();
  post(of_session("idle", job(3, kLong)));
  run();
  EXPECT_EQ(sinks_[2]->tokens, expected("and now", 200));
  EXPECT_EQ(sinks_[3]->tokens, expected(kLong));
  EXPECT_EQ(eos(3).usage.tier, Tier::hot);
}

TEST_F(KvCompactorTest, AStreamWhoseCellsCouldNotBeMovedGoesOn) {
  make_with_idle();
  stream(2, 200);
  while (stored() == 0) step();
  context_->fail_state = true;
  run();
  EXPECT_EQ(moved(), 0u);
  EXPECT_TRUE(std::holds_alternative<EosEvent>(results_.at(2).terminal)) << error(2).message;
  EXPECT_EQ(sinks_[2]->tokens, expected("and now", 200));
}

}  // namespace
}  // namespace uma::engine
