// Long prompts are computed in a prefill lane beside the streams.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/lane/lane_test_support.h"
#include "llm/media/image_tokens.h"
#include "testing/fake_model.h"

namespace uma::engine {
namespace {

class PrefillOffloadTest : public LaneTest {
 protected:
  // The prefill lane has three of four threads. Prompts that take longer than a millisecond are offloaded.
  static LaneOptions split() {
    LaneOptions options;
    options.threads = 4;
    options.threads_beside_prefill = 1;
    options.target_tbt_ms = 1.5;
    return options;
  }

  // A lane with a prefill lane.
  void make_both(FakeOptions options, LaneOptions lane_options = split()) {
    FakeOptions one = options;
    one.clock = &clock_;
    one.sequences = 1;
    one.has_spare = false;
    one.cells = std::min(FakeContext(options).shape().sequence_cells_max, prefill_cells_);
    auto prefill = std::make_unique<FakeContext>(one);
    prefill_context_ = prefill.get();
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
    return run_conversation("s", 1);
  }
  // The first turn of a session, of `count` tokens and a reply. Returns its next prompt of 150 tokens more.
  std::vector<Token> run_conversation(const std::string& session, std::uint64_t id, std::size_t count = 450,
                                      char letter = 'x') {
    post(of_session(session, job(id, std::string(count, letter))));
    lane_->step();
    run_both();
    std::vector<Token> chain = chain_after(id);
    const std::vector<Token> added = fake_tokens(std::string(150, 'y'));
    chain.insert(chain.end(), added.begin(), added.end());
    return chain;
  }
  void start_stream(std::uint64_t id, std::int32_t tokens_max) {
    post(job(id, "a stream", tokens_max));
    while (sinks_[id]->tokens.size() < 3) step();
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

TEST_F(PrefillOffloadTest, AnImageLeavesSoonerThanATextOfItsLength) {
  LaneOptions options = split();
  options.target_tbt_ms = 10;  // The image takes 6 ms: a text that takes as long is divided.
  make_both({.cells = 800, .sequences = 4}, options);
  start_stream(1, 60);
  post(job(2, std::string(60, 'x'), 2));
  run_both();
  EXPECT_EQ(lane_->stats().handover.count(), 0u);

  constexpr std::int32_t kRows = 60;
  image::EncodedImage encoded{.rows = {}, .row_width = 1, .pieces_end = {kRows}, .is_causal = false};
  GenerationJob with_image = job(3, "look", 2);
  for (std::int32_t i = 0; i < kRows; ++i) {
    with_image.tokens.push_back(llm::kImageTokensBegin + i);
    encoded.rows.push_back(testing::fake_row_value(with_image.tokens.back()));
  }
  const std::vector<Token> question = fake_tokens("which?");
  with_image.tokens.insert(with_image.tokens.end(), question.begin(), question.end());
  with_image.images.push_back({.image = "img",
                               .begin = 4,
                               .count = kRows,
                               .first_row = 0,
                               .encoded = std::make_shared<const image::EncodedImage>(encoded)});
  start_stream(4, 60);
  post(std::move(with_image));
  run_both();
  EXPECT_EQ(lane_->stats().handover.count(), 1u);
  EXPECT_EQ(sinks_[3]->tokens.size(), 2u);
}

TEST_F(PrefillOffloadTest, ShortPromptsThatComeTogetherStayInTheLaneHoweverSlowItIs) {
  make_both({.cells = 800, .sequences = 4, .batch_rows_max = 128, .row_cost = std::chrono::milliseconds(50)});
  post(job(1, "measures what a row costs", 2));
  lane_->step();
  run_both();
  const std::string short_prompt(40, 'x');
  for (const std::uint64_t id : {2, 3, 4}) post(job(id, std::to_string(id) + short_prompt, 4));
  for (int i = 0; i < 100 && sinks_[2]->tokens.empty(); ++i) step();
  for (const std::uint64_t id : {2, 3, 4}) EXPECT_EQ(sinks_[id]->tokens.size(), 1u) << "of request " << id;
  run_both();
  EXPECT_EQ(lane_->stats().handover.count(), 0u) << "none was computed beside the others' streams";
  post(job(5, kLong, 6));
  lane_->step();
  run_both();
  EXPECT_EQ(lane_->stats().handover.count(), 1u) << "a long prompt is, so that it does not delay those that come after it";
}

TEST_F(PrefillOffloadTest, StreamsHaveATickBeforeAComputedPromptJoinsThem) {
  make_both({.cells = 800, .sequences = 4});
  start_both();
  while (lane_->stats().handover.count() == 0) {
    (void)lane_->prefill_lane()->step();
    const std::size_t before = sinks_[1]->tokens.size();
    step();
    EXPECT_EQ(sinks_[1]->tokens.size(), before + 1);
  }
  EXPECT_EQ(sinks_[2]->tokens.size(), 1u) << "its second token is computed in their next tick";
  run_both();
  EXPECT_EQ(sinks_[2]->tokens, expected(kLong, 6));
}

TEST_F(PrefillOffloadTest, WhileALongPromptIsComputedAnotherOneLeavesTheLastSlotToShortOnes) {
  make_both({.cells = 800, .sequences = 3});
  start_both(200);
  post(job(3, "another " + kLong, 6));
  for (int i = 0; i < 5; ++i) lane_->step();
  EXPECT_EQ(lane_->stats().sequences_active.value(), 2) << "the third one would only wait in the slot";
  post(job(4, "short", 4));
  for (int i = 0; i < 20 && !results_.contains(4); ++i) lane_->step();
  EXPECT_TRUE(results_.contains(4)) << "before both long ones";
  run_both();
  EXPECT_EQ(sinks_[2]->tokens, expected(kLong, 6));
  EXPECT_EQ(sinks_[3]->tokens, expected("another " + kLong, 6));
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

TEST_F(PrefillOffloadTest, ALostDeviceEndsTheStreamAndThePromptBesideIt) {
  std::atomic<bool> lost = false;
  make_both({.cells = 800, .sequences = 4, .lost = &lost});
  prefill_context_->fault = [](std::span<const llm::BatchRow>) { return FakeFault::lost; };
  start_both();
  run_both();
  EXPECT_EQ(eos(1).error->code, ErrorCode::runtime_decode);
  EXPECT_EQ(error(2).code, ErrorCode::runtime_decode);
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
  EXPECT_EQ(ticks, 4) << "457 tokens in pieces of 128, 10 ms each";
  run_both();
  EXPECT_EQ(sinks_[2]->tokens, expected("a stream", 60));
  EXPECT_EQ(results_.at(3).generated, fake_continuation(options_, chain, 6));
  EXPECT_EQ(context_->cells_loaded - loaded_before, std::int64_t(chain.size()) - 457) << "the others are there already";
}

TEST_F(PrefillOffloadTest, AnInterruptedPromptIsSavedOnce) {
  make_both({.cells = 1600, .sequences = 4, .unified = true});
  start_stream(1, 60);
  const std::string longest(350, 'y');
  post(job(2, longest, 6));
  lane_->step();
  EXPECT_TRUE(lane_->prefill_lane()->step().did_work);
  ASSERT_GT(prefill_context_->sequence_length(0), 0);
  post(job(3, kLong, 6));
  run_both();
  EXPECT_EQ(sinks_[2]->tokens, expected(longest, 6));
  EXPECT_EQ(sinks_[3]->tokens, expected(kLong, 6));
  EXPECT_EQ(prefill_context_->cells_saved, std::int64_t(longest.size() + kLong.size()));
}

// A stream exhausts the cells at some time while a conversation leaves, is computed, or returns. It takes a few cells of one
// that leaves and is not saved yet.
TEST_F(PrefillOffloadTest, APromptThatLacksCellsOnItsWayIsNotComputedTwice) {
  for (std::int32_t cells = 625; cells < 720; ++cells) {
    SCOPED_TRACE(cells);
    make_both({.cells = cells, .sequences = 4, .unified = true, .state_cost = std::chrono::microseconds(100)});
    const std::vector<Token> chain = run_conversation("s", 1);
    start_stream(2, 200);
    post(next_turn(3, chain, 6));
    run_both();
    EXPECT_EQ(sinks_[2]->tokens, expected("a stream", 200));
    EXPECT_EQ(results_.at(3).generated, fake_continuation(options_, chain, 6));
    EXPECT_GE(lane_->stats().prompt_tokens_total.value(), 450u + 8 + 151);
    EXPECT_LE(lane_->stats().prompt_tokens_total.value(), 450u + 8 + 151 + 16);
  }
}

TEST_F(PrefillOffloadTest, AnInteractiveConversationLeavesBeforeABackgroundOne) {
  make_both({.cells = 3200, .sequences = 4, .unified = true, .state_cost = std::chrono::microseconds(50)});
  const std::vector<Token> first = run_conversation("t", 1, 450, 't');
  const std::vector<Token> second = run_conversation("s", 2, 450, 's');
  start_stream(3, 80);
  GenerationJob nightly = of_session("t", job(4, "", 6));
  nightly.tokens = first;
  nightly.is_background = true;
  post(std::move(nightly));
  post(next_turn(5, second, 6));
  while (!lane_->prefill_lane()->step().did_work) lane_->step();
  EXPECT_EQ(prefill_context_->cached(0, 1), fake_tokens("s"));
  run_both();
  EXPECT_EQ(results_.at(4).generated, fake_continuation(options_, first, 6));
  EXPECT_EQ(results_.at(5).generated, fake_continuation(options_, second, 6));
}

TEST_F(PrefillOffloadTest, MovesAreAPartOfTheTick) {
  LaneOptions options = split();
  options.target_tbt_ms = 30;
  make_both({.cells = 1600,
             .sequences = 4,
             .unified = true,
             .row_cost = std::chrono::microseconds(500),
             .state_cost = std::chrono::microseconds(60)},
            std::move(options));
  const std::vector<Token> chain = run_conversation("s", 1);
  start_stream(2, 80);
  post(next_turn(3, chain, 6));
  post(job(4, std::string(100, 'z'), 6));
  while (sinks_[4]->tokens.empty()) {
    const TimePoint before = clock_.now();
    lane_->step();
    EXPECT_LE(to_ms(clock_.now() - before), 31);
  }
  run_both();
  EXPECT_EQ(results_.at(3).generated, fake_continuation(options_, chain, 6));
}

TEST_F(PrefillOffloadTest, AnIdleLaneIsNotBusyForLongWithAMove) {
  make_both({.cells = 2400,
             .sequences = 4,
             .unified = true,
             .row_cost = std::chrono::milliseconds(10),
             .state_cost = std::chrono::microseconds(100)});
  const std::vector<Token> chain = run_conversation("s", 1, 2000);
  post(next_turn(2, chain, 6));
  while (!lane_->prefill_lane()->step().did_work) {
    const TimePoint before = clock_.now();
    lane_->step();
    ASSERT_LE(to_ms(clock_.now() - before), 90) << "all together take 200 ms";
  }
  run_both();
  EXPECT_EQ(results_.at(2).generated, fake_continuation(options_, chain, 6));
}

TEST_F(PrefillOffloadTest, TheDeadlineDoesNotEndARequestWhoseStateMoves) {
  const std::vector<Token> chain = make_with_long_conversation();
  start_stream(2, 60);
  GenerationJob late = next_turn(3, chain, 6);
  late.deadline = clock_.now() + std::chrono::milliseconds(15);
  post(std::move(late));
  for (int i = 0; i < 20; ++i) lane_->step();
  run_both();
  EXPECT_EQ(results_.at(3).generated, fake_continuation(options_, chain, 6));
}

TEST_F(PrefillOffloadTest, ThePrefillLanePausesWhileAStateMovesIfTheyTakeTurns) {
  LaneOptions options = split();
  options.threads_beside_prefill = 0;
  make_both({.cells = 1600, .sequences = 4, .unified = true, .state_cost = std::chrono::microseconds(50)}, std::move(options));
  const std::vector<Token> chain = run_conversation("s", 1);
  start_stream(2, 60);
  post(job(3, std::string(300, 'z'), 6));
  for (int i = 0; i < 3; ++i) step();
  ASSERT_TRUE(lane_->cores().takes_turns());
  int moves = 0;
  context_->on_state = [&] {
    ++moves;
    EXPECT_TRUE(lane_->cores().gate().is_closed());
  };
  post(next_turn(4, chain, 6));
  for (int i = 0; i < 100 && moves < 3; ++i) step();
  EXPECT_EQ(moves, 3);
  context_->on_state = nullptr;
  run_both();
}

// The prefill lane saves a computed prompt while its request is swapped out, and offloaded again.
TEST_F(PrefillOffloadTest, AReportOfAnEarlierOffloadEndsTheLaterOne) {
  make_both({.cells = 800, .sequences = 2});
  start_stream(1, 200);
  GenerationJob nightly = job(2, kLong, 6);
  nightly.is_background = true;
  post(std::move(nightly));
  lane_->step();
  bool has_happened = false;
  prefill_context_->on_state = [&] {
    if (std::exchange(has_happened, true)) return;
    post(job(3, "now", 3));
    for (int i = 0; i < 30; ++i) step();
    EXPECT_TRUE(results_.contains(3));
  };
  while (prefill_context_->cells_saved == 0) (void)lane_->prefill_lane()->step();
  EXPECT_EQ(lane_->stats().preemptions_total.value(), 1u);
  lane_->step();
  EXPECT_FALSE(lane_->prefill_lane()->step().did_work);
  run_both();
  EXPECT_EQ(sinks_[2]->tokens, expected(kLong, 6));
  EXPECT_EQ(lane_->stats().prompt_tokens_total.value(), 8 + 3 + kLong.size());
}

TEST_F(PrefillOffloadTest, APromptLeavesWhenThereIsMemoryForItsState) {
  kv::StateStore store({.warm_bytes_max = 1 << 20}, nullptr, clock_);
  LaneOptions options = split();
  options.store = &store;
  make_both({.cells = 3200, .sequences = 4, .unified = true}, std::move(options));
  start_stream(1, 80);
  store.limit_memory({.at_rest = 1 << 20, .in_all = 1 << 20});
  auto held = store.pool().reserve(1 << 20);
  ASSERT_TRUE(held);
  const std::string prompt(600, 'y');
  post(job(2, prompt, 6));
  for (int i = 0; i < 3; ++i) step();
  EXPECT_FALSE(lane_->cores().prefill_is_busy());
  held.reset();
  for (int i = 0; i < 3; ++i) step();
  EXPECT_TRUE(lane_->cores().prefill_is_busy());
  run_both();
  EXPECT_EQ(sinks_[2]->tokens, expected(prompt, 6));
}

TEST_F(PrefillOffloadTest, AStoredStateGivesWayToAPrompt) {
  kv::StateStore store({.warm_bytes_max = 1 << 20}, nullptr, clock_);
  LaneOptions options = split();
  options.store = &store;
  make_both({.cells = 3200, .sequences = 4, .unified = true}, std::move(options));
  (void)run_conversation("s", 1);
  lane_->post(CopyCommand{SessionId{"s"}, kv::GiveWay::at_once, [] {}});
  lane_->step();
  ASSERT_EQ(store.states_of({"s"}).tier, Tier::warm);
  const std::uint64_t bytes = store.pool().bytes_reserved() + 1000;
  store.limit_memory({.at_rest = bytes, .in_all = bytes});
  start_stream(2, 80);
  const std::string prompt(100, 'y');
  post(job(3, prompt, 6));
  lane_->step();
  EXPECT_TRUE(lane_->cores().prefill_is_busy());
  EXPECT_EQ(store.states_of({"s"}).tier, Tier::none);
  run_both();
  EXPECT_EQ(sinks_[3]->tokens, expected(prompt, 6));
}

TEST_F(PrefillOffloadTest, AWrongReuseIsAlsoFoundWhereTheTokensHaveLeftWith) {
  LaneOptions options = split();
  options.verify_every = 1;
  make_both({.cells = 3200, .sequences = 4, .unified = true, .has_spare = true}, std::move(options));
  const std::vector<Token> chain = run_conversation("s", 1);
  start_stream(2, 120);
  context_->damage(0, 3);
  GenerationJob alike = job(3, "", 6);
  alike.tokens = {chain.begin(), chain.end() - 100};
  post(std::move(alike));
  post(next_turn(4, chain, 6));
  while (lane_->stats().reuses_wrong_total.value() == 0) step();
  run_both();
  EXPECT_EQ(sinks_[3]->tokens, fake_continuation(options_, {chain.begin(), chain.end() - 100}, 6));
  EXPECT_EQ(results_.at(4).generated, fake_continuation(options_, chain, 6));
  EXPECT_EQ(eos(4).usage.reused_tokens, 0);
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

TEST_F(PrefillOffloadTest, ThePrefillContextBecomesWiderForALongerPrompt) {
  prefill_cells_ = 80;
  LaneOptions widens = split();
  widens.make_prefill_context = [this](std::int32_t cells) {
    FakeOptions wider = options_;
    wider.sequences = 1;
    wider.cells = cells;
    return std::make_unique<FakeContext>(wider);
  };
  make_both({.cells = 800, .sequences = 4}, std::move(widens));
  std::size_t rows_beside_stream = 0;
  context_->fault = [&](std::span<const llm::BatchRow> rows) {
    rows_beside_stream = std::max(rows_beside_stream, rows.size());
    return FakeFault::none;
  };
  start_both();
  run_both();
  EXPECT_EQ(sinks_[1]->tokens, expected("a stream", 40));
  EXPECT_EQ(sinks_[2]->tokens, expected(kLong, 6));
  EXPECT_EQ(lane_->stats().handover.count(), 1u);
  EXPECT_GT(lane_->prefill_lane()->cells(), 80);
  EXPECT_LE(lane_->prefill_lane()->cells(), 200) << "a sequence has 200 cells";
  EXPECT_LT(rows_beside_stream, 20u) << "no part of the prompt is computed in the lane's own context";
}

}  // namespace
}  // namespace uma::engine
