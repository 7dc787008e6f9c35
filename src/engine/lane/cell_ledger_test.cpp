#include "engine/lane/cell_ledger.h"

#include <initializer_list>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"

namespace uma::engine {
namespace {

TEST(CellLedger, ASharedCellIsFreeWhenNobodyHoldsIt) {
  CellLedger cells(2);
  cells.add(0, 5);
  cells.share(0, 1, 3);
  EXPECT_EQ(cells.used(), 5);
  EXPECT_TRUE(cells.is_shared(0, 2));
  EXPECT_FALSE(cells.is_shared(0, 3)) << "the other slot has the first three";
  cells.keep(0, 1);
  EXPECT_EQ(cells.used(), 3);
  cells.keep(1, 0);
  EXPECT_EQ(cells.used(), 1);
}

TEST(CellLedger, SharedCellsAreCountedOnce) {
  CellLedger cells(3);
  cells.add(0, 10);
  cells.share(0, 1, 6);
  cells.add(1, 2);
  cells.add(2, 1);
  const auto together = [&](std::initializer_list<CellLedger::Part> parts) { return cells.held_together(std::vector(parts)); };
  EXPECT_EQ(together({{.slot = 0, .count = 10}, {.slot = 1, .count = 8}}), 12);
  EXPECT_EQ(together({{.slot = 1, .count = 8}, {.slot = 0, .count = 7}}), 9);
  EXPECT_EQ(together({{.slot = 2, .count = 1}, {.slot = 0, .count = 0}}), 1);
}

TEST(CellLedger, ASlotGivesUpItsMiddle) {
  CellLedger cells(2);
  cells.add(0, 10);
  cells.share(0, 1, 5);
  cells.remove(0, 3, 8);
  EXPECT_EQ(cells.held(0), 5u);
  EXPECT_EQ(cells.used(), 7) << "two of the five are the other slot's too";
  EXPECT_TRUE(cells.is_shared(0, 2));
  EXPECT_FALSE(cells.is_shared(0, 3)) << "what follows has moved up";
}

TEST(CellLedger, NewTokensGetTheLowestFreeCells) {
  CellLedger cells(3);
  cells.add(0, 10);
  cells.add(1, 5);
  EXPECT_EQ(cells.top(), 15u);
  cells.keep(0, 4);
  EXPECT_EQ(cells.top(), 15u);
  cells.add(2, 6);
  EXPECT_EQ(cells.top(), 15u);
  cells.add(2, 1);
  EXPECT_EQ(cells.top(), 16u);
  cells.keep(2, 6);
  cells.keep(1, 0);
  EXPECT_EQ(cells.top(), 10u);
}

TEST(CellLedger, TheLastCellsMoveDown) {
  CellLedger cells(2);
  cells.add(0, 10);
  cells.add(1, 8);
  EXPECT_FALSE(cells.last_cells(100)) << "no cell is free";
  cells.keep(0, 3);
  const auto few = cells.last_cells(2);
  ASSERT_TRUE(few);
  EXPECT_EQ(few->slot, 1u);
  EXPECT_EQ(few->begin, 6u);
  EXPECT_EQ(few->end, 8u);
  cells.move_down(*few);
  EXPECT_EQ(cells.top(), 16u);
  const auto rest = cells.last_cells(100);
  ASSERT_TRUE(rest);
  EXPECT_EQ(rest->begin, 1u) << "the first cell lies within the first eleven";
  EXPECT_EQ(rest->end, 6u);
  cells.move_down(*rest);
  EXPECT_EQ(cells.top(), 11u);
  EXPECT_EQ(cells.used(), 11);
  EXPECT_FALSE(cells.last_cells(100));
}

TEST(CellLedger, SharedCellsStayWhereTheyAre) {
  CellLedger cells(3);
  cells.add(0, 10);
  cells.add(1, 8);
  cells.share(1, 2, 8);
  cells.keep(0, 0);
  EXPECT_FALSE(cells.last_cells(100));
  EXPECT_EQ(cells.held_alone(1), 0u);
  cells.add(1, 1);
  EXPECT_EQ(cells.held_alone(1), 1u);
}

// Compares the ledger with a simple count, for any sequence of calls.
TEST(CellLedger, CountsAsSlotsThatAreWrittenOut) {
  constexpr std::size_t kSlots = 4;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Random random(seed);
    CellLedger cells(kSlots);
    std::vector<std::vector<int>> slots(kSlots);
    int next = 0;
    for (int i = 0; i < 200; ++i) {
      const std::size_t slot = random.next_below(kSlots);
      std::vector<int>& held = slots[slot];
      const std::size_t begin = random.next_below(held.size() + 1);
      const std::size_t end = begin + random.next_below(held.size() - begin + 1);
      const auto at = [&](std::size_t position) { return held.begin() + static_cast<std::ptrdiff_t>(position); };
      switch (random.next_below(5)) {
        case 0:
          for (const std::uint64_t count = random.next_below(5), stop = held.size() + count; held.size() < stop;) {
            held.push_back(next++);
            cells.add(slot, 1);
          }
          break;
        case 1:
          held.resize(begin);
          cells.keep(slot, begin);
          break;
        case 2:
          cells.remove(slot, begin, end);
          held.erase(at(begin), at(end));
          break;
        case 3:
          if (const auto range = cells.last_cells(1 + random.next_below(6))) {
            const std::size_t top = cells.top();
            cells.move_down(*range);
            ASSERT_LT(cells.top(), top) << seed;
          }
          break;
        default:
          const std::size_t to = (slot + 1) % kSlots;
          if (!slots[to].empty()) break;
          slots[to].assign(held.begin(), at(begin));
          cells.share(slot, to, begin);
      }
      std::map<int, int> holders;
      for (const std::vector<int>& each : slots) {
        for (const int cell : each) ++holders[cell];
      }
      ASSERT_EQ(cells.used(), std::ssize(holders)) << seed;
      ASSERT_GE(static_cast<std::int64_t>(cells.top()), cells.used()) << seed;
      for (std::size_t each = 0; each < kSlots; ++each) {
        ASSERT_EQ(cells.held(each), slots[each].size()) << seed;
        ASSERT_EQ(cells.is_shared(each, 0), std::ranges::any_of(slots[each], [&](int cell) { return holders[cell] > 1; }));
      }
    }
  }
}

}  // namespace
}  // namespace uma::engine
