// Sequences are swapped out for others and resume.
#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

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

// --- Beside a stream

// A tick has time for one piece of 128 tokens, which takes 6.4 ms.
class SwapOutBesideAStreamTest : public LaneTest {
 protected:
  static FakeOptions options(std::int32_t cells, std::int32_t sequences) {
    return {.cells = cells, .sequences = sequences, .unified = true, .state_cost = std::chrono::microseconds(50)};
  }
  // Posts a request and steps until it generates.
  void begin(GenerationJob made) {
    const std::uint64_t id = made.id.value;
    post(std::move(made));
    for (int i = 0; i < 1000 && sinks_[id]->tokens.empty(); ++i) step();
  }
  void begin_nightly(std::uint64_t id) {
    GenerationJob nightly = job(id, history_, 60);
    nightly.is_background = true;
    begin(std::move(nightly));
  }

  struct Saves {
    std::int64_t cells_max = 0;  // The most that a tick has saved.
    int ticks = 0;               // So many have saved some.
    int tokens = 0;              // So many tokens the stream has got in these ticks.
  };
  // Steps until something is done, which has to be before stream `id` ends.
  Saves saves_until(const std::function<bool()>& is_done, std::uint64_t id) {
    Saves saves;
    for (int i = 0; i < 1000 && !is_done() && !results_.contains(id); ++i) {
      const std::int64_t before = context_->cells_saved;
      const std::size_t tokens = sinks_[id]->tokens.size();
      step();
      const std::int64_t saved = context_->cells_saved - before;
      saves.cells_max = std::max(saves.cells_max, saved);
      saves.ticks += saved > 0 ? 1 : 0;
      saves.tokens += saved > 0 ? static_cast<int>(sinks_[id]->tokens.size() - tokens) : 0;
    }
    EXPECT_TRUE(is_done());
    return saves;
  }

  static constexpr std::int64_t kPiece = 128;
  const std::string history_ = std::string(1000, 'h');
};

TEST_F(SwapOutBesideAStreamTest, ABackgroundSequenceLeavesItsSlotPieceByPiece) {
  make(options(4096, 2));
  begin_nightly(1);
  begin(job(2, "a stream", 300));
  post(job(3, "now", 5));
  const Saves saves = saves_until([&] { return results_.contains(3); }, 2);
  EXPECT_EQ(saves.cells_max, kPiece);
  EXPECT_EQ(saves.ticks, 8) << "1000 tokens and a few";
  EXPECT_GE(saves.tokens, 7) << "the stream goes on";
  EXPECT_EQ(lane_->stats().preemptions_total.value(), 1u);
  run();
  EXPECT_EQ(sinks_[1]->tokens, expected(history_, 60)) << "as if nobody had interrupted it";
  EXPECT_EQ(sinks_[2]->tokens, expected("a stream", 300));
  EXPECT_EQ(sinks_[3]->tokens, expected("now", 5));
  EXPECT_EQ(lane_->stats().warm_hits_total.value(), 1u);
  EXPECT_EQ(lane_->stats().swapped_bytes.value(), 0);
}

TEST_F(SwapOutBesideAStreamTest, ABackgroundSequenceGivesItsCellsPieceByPiece) {
  make(options(1500, 4));
  begin_nightly(1);
  begin(job(2, "a stream", 200));
  const std::string prompt(600, 'p');
  post(job(3, prompt, 5));
  const Saves saves = saves_until([&] { return results_.contains(3); }, 2);
  EXPECT_EQ(saves.cells_max, kPiece);
  EXPECT_GE(saves.tokens, 7) << "the stream goes on";
  EXPECT_EQ(lane_->stats().preemptions_total.value(), 1u);
  run();
  EXPECT_EQ(sinks_[1]->tokens, expected(history_, 60));
  EXPECT_EQ(sinks_[3]->tokens, expected(prompt, 5));
}

TEST_F(SwapOutBesideAStreamTest, WhoLeavesForLackOfCellsGivesThemBeforeItsStateIsSaved) {
  make(options(2100, 2));
  begin(job(1, history_, 150));
  const std::string other(1000, 'o');
  begin(job(2, other, 150));
  const Saves saves = saves_until([&] { return lane_->stats().preemptions_total.value() == 1; }, 1);
  EXPECT_EQ(saves.cells_max, kPiece);
  EXPECT_GE(saves.ticks, 8);
  EXPECT_GE(saves.tokens, saves.ticks - 1) << "the other one does not wait";
  const std::int64_t loaded = context_->cells_loaded;
  run();
  EXPECT_EQ(sinks_[1]->tokens, expected(history_, 150));
  EXPECT_EQ(sinks_[2]->tokens, expected(other, 150));
  EXPECT_GT(context_->cells_loaded - loaded, 1000) << "only a few of its tokens are computed again";
}

TEST_F(SwapOutBesideAStreamTest, AStateThatCannotBeSavedToItsEndIsComputedAgain) {
  make(options(4096, 2));
  begin_nightly(1);
  begin(job(2, "a stream", 300));
  const std::int64_t before = context_->cells_saved;
  post(job(3, "now", 5));
  for (int i = 0; i < 100 && context_->cells_saved < before + 2 * kPiece; ++i) step();
  context_->fail_state = true;
  run();
  EXPECT_EQ(sinks_[1]->tokens, expected(history_, 60));
  EXPECT_EQ(sinks_[3]->tokens, expected("now", 5));
  EXPECT_EQ(lane_->stats().warm_hits_total.value(), 0u);
}

TEST_F(SwapOutBesideAStreamTest, WhoIsCancelledOnItsWayOutIsGone) {
  make(options(4096, 2));
  begin_nightly(1);
  begin(job(2, "a stream", 300));
  const std::int64_t before = context_->cells_saved;
  post(job(3, "now", 5));
  for (int i = 0; i < 100 && context_->cells_saved == before; ++i) step();
  lane_->post(CancelCommand{RequestId{1}});
  run();
  EXPECT_EQ(eos(1).reason, FinishReason::cancelled);
  EXPECT_EQ(sinks_[3]->tokens, expected("now", 5));
  EXPECT_EQ(context_->cells_saved, before + kPiece);
  EXPECT_EQ(lane_->stats().preemptions_total.value(), 0u);
}

// A split context saves whole states only.
TEST_F(SwapOutBesideAStreamTest, OfAContextWithoutPiecesOneStateLeavesInATick) {
  FakeOptions split = options(4 * 1200, 4);
  split.unified = false;
  make(split);
  begin_nightly(1);
  begin_nightly(2);
  begin_nightly(3);
  begin(job(4, "a stream", 300));
  for (std::uint64_t id = 5; id <= 7; ++id) post(job(id, "now", 5));
  const auto have_ended = [&] { return results_.contains(5) && results_.contains(6) && results_.contains(7); };
  const Saves saves = saves_until(have_ended, 4);
  EXPECT_LT(saves.cells_max, 1100);
  run();
  for (std::uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(sinks_[id]->tokens, expected(history_, 60)) << id;
}

}  // namespace
}  // namespace uma::engine
