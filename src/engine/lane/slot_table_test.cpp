#include "engine/lane/slot_table.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "testing/fake_model.h"

namespace uma::engine {
namespace {

using testing::fake_tokens;
using testing::FakeContext;
using testing::FakeOptions;

// A table and its context.
struct TableBench {
  explicit TableBench(const FakeOptions& options, bool can_shift = true) : context(options), table(context, can_shift) {}

  // Computes the text at the end of a slot, as a sequence of the session does.
  void compute(std::size_t slot, std::string_view text, const std::string& session = "") {
    kv::StateOwner owner;
    owner.session = SessionId{session};
    table.claim(slot, std::move(owner), false);
    const std::vector<Token> tokens = decode(slot, text);
    table.append(slot, tokens);
    table.release(slot, now);
    table.check_invariants();
  }
  // Computes the text in the context only, without the table.
  std::vector<Token> decode(std::size_t slot, std::string_view text) {
    const auto sequence = static_cast<std::int32_t>(slot);
    std::vector<Token> tokens = fake_tokens(text);
    std::vector<llm::BatchRow> rows;
    for (const Token token : tokens) {
      rows.push_back({token, context.sequence_length(sequence) + static_cast<std::int32_t>(rows.size()), sequence, false});
    }
    EXPECT_TRUE(context.decode(rows, nullptr));
    return tokens;
  }

  TimePoint now{std::chrono::seconds(1)};
  FakeContext context;
  SlotTable table;
};

TEST(SlotTable, AnAgentKeepsWhatThatHasBegunItWaitsWith) {
  TableBench bench({.sequences = 3});
  const Agent parent{.id = "parent", .run = "parent"};
  for (std::size_t slot = 0; slot < 2; ++slot) {
    bench.compute(slot, "hello");
    bench.table.set_agent(slot, slot == 0 ? parent : Agent{.id = "other", .run = "other"}, bench.now);
    bench.table.set_pause(slot, kv::kToolPauseS);
  }
  const TimePoint then = bench.now;
  bench.now += std::chrono::minutes(1);
  bench.compute(2, "task");
  bench.table.set_agent(2, {.id = "child", .parent = "parent", .run = "parent"}, bench.now);
  EXPECT_EQ(bench.table[0].kept_at, bench.now);
  EXPECT_EQ(bench.table[0].last_used, then) << "a copy of it in progress goes on";
  EXPECT_EQ(bench.table[1].kept_at, TimePoint{});
}

TEST(SlotTable, ASlotIsOfItsSessionUntilItIsDisowned) {
  TableBench bench({.sequences = 2});
  bench.compute(1, "hello", "s");
  EXPECT_EQ(bench.table.find_of(SessionId{"s"}), 1u);
  EXPECT_EQ(bench.table.find_of(SessionId{""}), std::nullopt) << "one-shot requests have no session";
  EXPECT_EQ(bench.table.hot_sessions(), 1);
  bench.table.disown(1);
  EXPECT_EQ(bench.table.find_of(SessionId{"s"}), std::nullopt);
  EXPECT_EQ(bench.table[1].tokens, fake_tokens("hello")) << "its tokens stay";
}

TEST(SlotTable, TheLowestSlotThatIsEmptyAndIdleComesFirst) {
  TableBench bench({.sequences = 3});
  EXPECT_EQ(bench.table.find_empty(), 0u);
  bench.compute(0, "hello");
  bench.table.claim(1, {}, false);
  EXPECT_EQ(bench.table.running(), 1);
  EXPECT_EQ(bench.table.find_empty(), 2u);
  bench.table.release(1, bench.now);
  EXPECT_EQ(bench.table.find_empty(), 1u);
}

TEST(SlotTable, ACutTakesTheContextAlong) {
  TableBench bench({});
  bench.compute(0, "hello");
  EXPECT_TRUE(bench.table.cut(0, 3));
  EXPECT_EQ(bench.table[0].tokens, fake_tokens("hel"));
  EXPECT_EQ(bench.table.cells_used(), 3);
  bench.table.check_invariants();
}

TEST(SlotTable, WhereTheContextCannotCutTheSlotIsEmpty) {
  TableBench bench({.can_truncate = false});
  bench.compute(0, "hello", "s");
  EXPECT_TRUE(bench.table.cut(0, 5)) << "nothing is cut";
  EXPECT_FALSE(bench.table.cut(0, 3));
  EXPECT_TRUE(bench.table[0].is_empty());
  EXPECT_EQ(bench.table.find_of(SessionId{"s"}), 0u) << "it is the session's still";
  bench.table.check_invariants();
}

TEST(SlotTable, SharedCellsCountOnce) {
  TableBench bench({.unified = true});
  bench.compute(0, "hello");
  bench.table.share(0, 1, 4, bench.now);
  EXPECT_EQ(bench.table[1].tokens, fake_tokens("hell"));
  EXPECT_EQ(bench.table.cells_used(), 5);
  bench.table.clear(0);
  EXPECT_EQ(bench.table.cells_used(), 4);
  bench.table.check_invariants();
}

TEST(SlotTable, WhatAShiftMovesIsTheSessionsAlone) {
  TableBench bench({.unified = true});
  bench.compute(0, "keep drop stay", "s");
  ASSERT_TRUE(bench.table.shift(0, 4, 9));
  EXPECT_EQ(bench.table[0].tokens, fake_tokens("keep stay"));
  EXPECT_TRUE(bench.table[0].was_moved());
  EXPECT_EQ(bench.table[0].unmoved().size(), 4u);
  bench.table.check_invariants();
  ASSERT_TRUE(bench.table.cut(0, 4));
  EXPECT_FALSE(bench.table[0].was_moved()) << "what was moved is gone";
}

TEST(SlotTable, SharedCellsAreNotMoved) {
  TableBench bench({.unified = true});
  bench.compute(0, "keep drop stay", "s");
  bench.table.share(0, 1, 12, bench.now);
  EXPECT_FALSE(bench.table.shift(0, 4, 9));
  EXPECT_EQ(bench.table[0].tokens, fake_tokens("keep drop stay"));
  bench.table.clear(1);
  EXPECT_TRUE(bench.table.shift(0, 4, 9));
  TableBench reproducible({}, /*can_shift=*/false);
  reproducible.compute(0, "keep drop stay", "s");
  EXPECT_FALSE(reproducible.table.shift(0, 4, 9));
}

TEST(SlotTable, TakesOverWhatAnInterruptedCallLeft) {
  TableBench bench({});
  const std::vector<Token> chain = fake_tokens("hello");
  bench.compute(0, "he");
  bench.decode(0, "l");
  bench.table.resync(0, chain);
  EXPECT_EQ(bench.table[0].tokens, fake_tokens("hel"));
  bench.table.check_invariants();
  bench.decode(0, "lo??");  // A draft behind the chain.
  bench.table.resync(0, chain);
  EXPECT_EQ(bench.table[0].tokens, fake_tokens("hell")) << "the last token is computed again, for its logits";
  bench.table.check_invariants();
}

TEST(SlotTable, OtherThreadsSeeWhatWasPublished) {
  TableBench bench({});
  bench.compute(0, "hello", "s");
  EXPECT_FALSE(bench.table.holds(SessionId{"s"}));
  bench.table.publish();
  EXPECT_TRUE(bench.table.holds(SessionId{"s"}));
  EXPECT_EQ(bench.table.bytes_of(SessionId{"s"}), 5 * FakeContext::kCellBytes);
  bench.table.clear(0);
  bench.table.publish();
  EXPECT_FALSE(bench.table.holds(SessionId{"s"}));
  EXPECT_EQ(bench.table.bytes_of(SessionId{"s"}), 0u);
}

TEST(SlotTable, RowsOfTheSpareSequenceTakeCells) {
  TableBench bench({.unified = true, .has_spare = true});
  bench.compute(0, "hello");
  bench.table.set_spare_rows(7);
  EXPECT_EQ(bench.table.cells_used(), 12);
  bench.table.set_spare_rows(2);
  EXPECT_EQ(bench.table.cells_used(), 7);
}

}  // namespace
}  // namespace uma::engine
