// A full context drops its oldest turns.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/lane/lane_test_support.h"

namespace uma::engine {
namespace {

class ContextShifterTest : public LaneTest {
 protected:
  // 36 tokens: 4 kept ones, and turns that begin at 12, 24 and 32.
  static constexpr std::string_view kTurns = "SYS:first...second......third...four";
  GenerationJob turns_job(std::uint64_t id, std::string_view prompt = kTurns, std::int32_t tokens_max = 100) {
    GenerationJob made = of_session("s", job(id, prompt, tokens_max));
    made.flow.tenant = "a";
    made.droppable = {.keep = 4, .turns_begin = {12, 24, 32}};
    return made;
  }

  // The model's continuation, with the turns dropped that were reported to the client.
  std::vector<Token> expected_with_shifts(std::uint64_t id, std::vector<Token> chain, std::size_t keep = 4) {
    std::vector<Token> made;
    std::size_t at = 0;
    for (const RecordingSink::Shift& shift : sinks_[id]->shifts) {
      const auto part = fake_continuation(options_, chain, static_cast<std::int32_t>(shift.after - at));
      chain.insert(chain.end(), part.begin(), part.end());
      made.insert(made.end(), part.begin(), part.end());
      at = shift.after;
      const auto begin = chain.begin() + static_cast<std::ptrdiff_t>(keep);
      chain.erase(begin, begin + shift.dropped_tokens);
    }
    const auto rest = fake_continuation(options_, chain, static_cast<std::int32_t>(sinks_[id]->tokens.size() - at));
    made.insert(made.end(), rest.begin(), rest.end());
    return made;
  }
};

TEST_F(ContextShifterTest, AReplyThatFillsTheContextDropsTheOldestTurnsAndGoesOn) {
  struct Kind {
    FakeOptions model;
    bool is_reproducible = false;
    std::int64_t shifts = 0;
  };
  const FakeOptions split{.cells = 160, .sequences = 4};
  const FakeOptions unified{.cells = 40, .sequences = 4, .unified = true};
  FakeOptions no_shift = split;
  no_shift.can_shift = false;
  FakeOptions no_cut = split;
  no_cut.can_truncate = false;
  for (const Kind& kind : {Kind{split, false, 2}, Kind{unified, false, 2}, Kind{no_shift}, Kind{no_cut}, Kind{split, true}}) {
    LaneOptions options;
    options.is_reproducible = kind.is_reproducible;
    make(kind.model, std::move(options));
    post(turns_job(1));
    run();
    const RecordingSink& sink = *sinks_[1];
    // The context is full at 40 tokens. A quarter is freed, or as much as there is.
    ASSERT_EQ(sink.shifts.size(), 2u);
    EXPECT_EQ(sink.shifts[0].after, 4u);
    EXPECT_EQ(sink.shifts[0].dropped_turns, 2);
    EXPECT_EQ(sink.shifts[0].dropped_tokens, 20);
    EXPECT_EQ(sink.shifts[1].after, 24u);
    EXPECT_EQ(sink.shifts[1].dropped_turns, 1);
    EXPECT_EQ(sink.shifts[1].dropped_tokens, 8);
    EXPECT_EQ(sink.tokens.size(), 32u) << "the turn under way stays, and ends the reply";
    EXPECT_EQ(eos(1).reason, FinishReason::length);
    EXPECT_EQ(eos(1).usage.prompt_tokens, 36);
    EXPECT_EQ(eos(1).usage.dropped_turns, 3);
    EXPECT_EQ(eos(1).usage.dropped_tokens, 28);
    EXPECT_EQ(results_.at(1).dropped_turns, 3);
    EXPECT_EQ(context_->shifts(), kind.shifts);
    EXPECT_EQ(sink.tokens, expected_with_shifts(1, fake_tokens(kTurns)));
    EXPECT_EQ(results_.at(1).generated, sink.tokens);
  }
}

TEST_F(ContextShifterTest, InputThatDoesNotFitDropsTurnsBeforeItBegins) {
  for (const bool is_hot : {true, false}) {
    make({.cells = 160, .sequences = 4});
    std::vector<Token> chain = fake_tokens(kTurns);
    if (is_hot) {
      GenerationJob before = turns_job(1, kTurns, 2);
      post(std::move(before));
      run();
      chain.insert(chain.end(), results_.at(1).generated.begin(), results_.at(1).generated.end());
    } else {
      chain.insert(chain.end(), {'x', 'y'});
    }
    const std::vector<Token> input = fake_tokens("more input");
    chain.insert(chain.end(), input.begin(), input.end());
    GenerationJob next = turns_job(2, "", 5);
    next.tokens = chain;
    next.droppable.turns_begin.push_back(38);
    post(std::move(next));
    run();
    ASSERT_EQ(sinks_[2]->shifts.size(), 1u);
    EXPECT_EQ(sinks_[2]->shifts[0].after, 0u);
    EXPECT_EQ(sinks_[2]->shifts[0].dropped_tokens, 20) << "48 tokens become 35, which leaves room for 5";
    EXPECT_EQ(sinks_[2]->tokens, expected_with_shifts(2, chain));
    EXPECT_EQ(eos(2).usage.prompt_tokens, 28);
    EXPECT_EQ(eos(2).usage.reused_tokens, is_hot ? 37 - 20 : 0);
    EXPECT_EQ(eos(2).usage.reuse_reason, is_hot ? "shifted" : "not_cached");
    EXPECT_EQ(context_->moved_cells(0) > 0, is_hot);
  }
}

// Moved cells differ from computed ones, so no other sequence may use them.
TEST_F(ContextShifterTest, CellsThatWereMovedUpAreNeitherSharedNorSaved) {
  for (const bool unified : {false, true}) {
    kv::StateStore store({.warm_bytes_max = 100'000}, nullptr, clock_);
    LaneOptions options;
    options.store = &store;
    options.stored_tokens_min = 4;
    make({.cells = unified ? 320 : 640, .sequences = 4, .unified = unified}, std::move(options));
    const std::int32_t cells = lane_->shape().sequence_cells_max;
    const std::string first(static_cast<std::size_t>(cells) / 4 * 3, 'f');
    const std::string second(static_cast<std::size_t>(cells) / 8, 's');
    GenerationJob fills = job(1, first + second, cells);
    fills.session = {"s"};
    fills.flow.tenant = "a";
    fills.droppable = {.keep = 20, .turns_begin = {cells / 4 * 3}};
    post(std::move(fills));
    for (int i = 0; i < 10'000 && sinks_[1]->shifts.empty(); ++i) step();
    for (int i = 0; i < 5; ++i) step();
    lane_->post(CancelCommand{RequestId{1}});
    run();
    ASSERT_EQ(context_->shifts(), 1);
    std::vector<Token> chain = fake_tokens(first.substr(0, 20) + second);
    chain.insert(chain.end(), results_.at(1).generated.begin(), results_.at(1).generated.end());

    GenerationJob own = job(2, "", 3);
    own.flow.tenant = "a";
    own.session = {"s"};
    own.tokens = chain;
    own.tokens.push_back('?');
    post(std::move(own));
    run();
    EXPECT_EQ(eos(2).usage.reuse_reason, "shifted");
    EXPECT_EQ(eos(2).usage.reused_tokens, static_cast<std::int32_t>(chain.size()) - 1);
    GenerationJob other = job(3, "", 3);
    other.flow.tenant = "a";
    other.tokens = chain;
    post(std::move(other));
    run();
    EXPECT_EQ(eos(3).usage.reused_tokens, 20) << "the beginning was not moved";
    GenerationJob fork = job(4, "", 3);
    fork.flow.tenant = "a";
    fork.session = {"fork"};
    fork.forked_from = {"s"};
    fork.tokens = chain;
    fork.tokens.push_back('!');
    post(std::move(fork));
    run();
    EXPECT_NE(eos(4).usage.reuse_reason, "shifted");
    lane_->close();
    lane_->cancel_all();
    EXPECT_EQ(store.states_of({"s"}).tier, Tier::none) << "it is computed again from its tokens";
    EXPECT_EQ(store.states_of({"fork"}).tier, Tier::warm);
  }
}

TEST_F(ContextShifterTest, CellsThatAForkSharesAreNotMoved) {
  make({.cells = 40, .sequences = 4, .unified = true});
  post(turns_job(1, kTurns, 1));
  run();
  std::vector<Token> chain = fake_tokens(kTurns);
  chain.push_back(results_.at(1).generated.at(0));
  GenerationJob fork = job(2, "", 2);
  fork.session = {"fork"};
  fork.flow.tenant = "a";
  fork.forked_from = {"s"};
  fork.tokens = chain;
  post(std::move(fork));
  run();
  EXPECT_EQ(eos(2).usage.tier, Tier::hot);
  GenerationJob parent = turns_job(3, "", 20);
  parent.tokens = chain;
  post(std::move(parent));
  run();
  EXPECT_EQ(sinks_[3]->shifts.size(), 1u);
  EXPECT_EQ(sinks_[3]->tokens, expected_with_shifts(3, chain));
  EXPECT_EQ(sinks_[2]->tokens, fake_continuation(options_, chain, 2));
}

// A call rotates the keys of moved cells. If it fails, nobody knows which were rotated.
TEST_F(ContextShifterTest, CellsWhoseMoveFailedAreComputedAgain) {
  for (const bool unified : {false, true}) {
    make({.cells = unified ? 40 : 160, .sequences = 4, .unified = unified});
    std::int64_t shifts = 0;
    context_->fault = [&](std::span<const llm::BatchRow>) {
      return std::exchange(shifts, context_->shifts()) == context_->shifts() ? FakeFault::none : FakeFault::decode_error;
    };
    post(turns_job(1));
    run();
    EXPECT_EQ(shifts, 2);
    EXPECT_EQ(sinks_[1]->tokens, expected_with_shifts(1, fake_tokens(kTurns)));
    EXPECT_EQ(eos(1).reason, FinishReason::length);
  }
}

TEST_F(ContextShifterTest, ACallOfOthersThatFailsLosesMovedCells) {
  make({.cells = 640, .sequences = 4, .adapters = 1});
  GenerationJob beside = job(1, "beside", 140);
  beside.adapters = llm::make_adapter_set(model_->facts().adapters, {{0, 1}});  // Its calls are its own.
  bool has_lost = false;
  context_->fault = [&](std::span<const llm::BatchRow> rows) {
    if (has_lost || rows.front().sequence != 0 || context_->moved_cells(1) == 0) return FakeFault::none;
    has_lost = true;
    return FakeFault::decode_error;
  };
  const llm::AdapterSet adapters = beside.adapters;
  post(std::move(beside));
  step();
  GenerationJob made = turns_job(2, std::string(kTurns) + std::string(100, '.'));
  post(std::move(made));
  run();
  EXPECT_TRUE(has_lost);
  EXPECT_EQ(sinks_[1]->tokens, fake_continuation(options_, fake_tokens("beside"), 140, nullptr, adapters));
  EXPECT_EQ(sinks_[2]->tokens, expected_with_shifts(2, chains_.at(2)));
}

TEST_F(ContextShifterTest, AClientThatCannotBeToldWhatWasDroppedLosesItsStream) {
  make({.cells = 160, .sequences = 4});
  GenerationJob told = turns_job(1);
  sinks_[1]->takes_shifts = false;
  post(std::move(told));
  run();
  EXPECT_EQ(eos(1).reason, FinishReason::slow_consumer);
  EXPECT_EQ(eos(1).usage.dropped_turns, 2);
  EXPECT_EQ(results_.at(1).dropped_turns, 2) << "its chain goes on from there";
  EXPECT_EQ(results_.at(1).generated.size(), 4u);
}

}  // namespace
}  // namespace uma::engine
