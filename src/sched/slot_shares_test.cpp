#include "sched/slot_shares.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"

namespace uma::sched {
namespace {

constexpr std::size_t kSlots = 8;

std::size_t running(const SlotShares::Uses& uses) {
  std::size_t all = 0;
  for (const auto& [name, use] : uses) all += use.running;
  return all;
}

class SlotSharesTest : public ::testing::Test {
 protected:
  // The number of slots that the tenant may have, as others use theirs.
  std::size_t may_have(const std::string& tenant, SlotShares::Uses uses, std::size_t slots = kSlots) {
    while (shares_.slots_left(tenant, uses, slots, now_) > 0) ++uses[tenant].running;
    EXPECT_LE(running(uses), slots);
    return uses[tenant].running;
  }
  // The tenant has had so many requests in slots at once, and they have ended.
  void used(const std::string& tenant, std::size_t count) {
    shares_.note({{tenant, {.running = count}}}, now_);
    shares_.note({}, now_);
  }

  SlotShares shares_;
  TimePoint now_ = TimePoint{} + std::chrono::hours(5);
};

TEST_F(SlotSharesTest, OneTenantHasAll) {
  used("a", 8);
  EXPECT_EQ(may_have("a", {}), 8);
}

TEST_F(SlotSharesTest, AsManyAreKeptAsTheOtherUsedAtOnce) {
  used("b", 3);
  EXPECT_EQ(may_have("a", {}), 5);
  EXPECT_EQ(may_have("a", {{"b", {.running = 2}}}), 5);
  now_ += SlotShares::kLately;
  EXPECT_EQ(may_have("a", {}), 5);
  now_ += SlotShares::kLately;
  EXPECT_EQ(may_have("a", {}), 7);
}

TEST_F(SlotSharesTest, NoMoreThanAnEqualShareIsKept) {
  used("b", 8);
  EXPECT_EQ(may_have("a", {}), 4);
  EXPECT_EQ(may_have("a", {{"b", {.running = 1, .ready = 20}}}), 4);
}

// The slots that are left over by dividing eight by three go to those who have none of them.
TEST_F(SlotSharesTest, NobodyTakesTwoOfTheRestBeforeAnotherHasOne) {
  for (const std::string tenant : {"a", "b", "c"}) used(tenant, 3);
  EXPECT_EQ(may_have("a", {{"a", {.running = 3}}, {"b", {.running = 2}}, {"c", {.running = 2}}}), 3);
  EXPECT_EQ(may_have("a", {{"a", {.running = 3}}, {"b", {.running = 2, .ready = 1}}, {"c", {.running = 2, .ready = 1}}}), 3);
  EXPECT_EQ(may_have("b", {{"a", {.running = 3}}, {"b", {.running = 2}}, {"c", {.running = 2, .ready = 1}}}), 3);
  EXPECT_EQ(may_have("a", {{"a", {.running = 2}}, {"b", {.running = 2, .ready = 1}}}), 3) << "not a fourth before b's third";
}

TEST_F(SlotSharesTest, OneIsKeptForAnHour) {
  used("b", 3);
  now_ += 2 * SlotShares::kLately;
  EXPECT_EQ(may_have("a", {}), 7);
  EXPECT_EQ(may_have("a", {}, 3), 3);  // Too few to leave one unused.
  now_ += SlotShares::kRemembered;
  EXPECT_EQ(may_have("a", {}), 8);
}

// A request that takes longer than slots are kept counts for the time after it, too.
TEST_F(SlotSharesTest, ALongRequestCounts) {
  shares_.note({{"b", {.running = 2}}}, now_);
  now_ += std::chrono::minutes(10);
  EXPECT_EQ(may_have("a", {{"b", {.running = 2}}}), 6);
  shares_.note({}, now_);
  EXPECT_EQ(may_have("a", {}), 6);
}

// One who has its part does not keep another from its own for somebody who is away.
TEST_F(SlotSharesTest, WhoGoesOnWithLessThanItsPartTakesItBeforeTheAbsent) {
  for (const std::string tenant : {"a", "b", "c"}) used(tenant, 4);
  EXPECT_EQ(may_have("b", {{"a", {.running = 2}}}), 3) << "not a's third";
  EXPECT_EQ(may_have("a", {{"a", {.running = 2}}, {"b", {.running = 3}}}), 3) << "and two are free for c";
}

// Half of the slots are enough for twenty who ask now and then, and for tenants that use one of the many that they had.
TEST_F(SlotSharesTest, AtMostHalfIsKeptForWhatDoesNotWait) {
  for (int i = 0; i < 20; ++i) used("user" + std::to_string(i), 1);
  EXPECT_EQ(may_have("a", {}), 4);
  EXPECT_EQ(may_have("a", {}, 1), 1);
  EXPECT_EQ(may_have("a", {}, 3), 3);
  SlotShares::Uses uses;
  for (const std::string tenant : {"b", "c", "d"}) uses[tenant].running = 4;
  shares_.note(uses, now_);
  for (auto& [name, use] : uses) use.running = 1;
  EXPECT_EQ(may_have("a", uses, 16), 5);
}

// Requests that cannot use a slot keep none.
TEST_F(SlotSharesTest, NothingIsKeptForWhoLacksCells) {
  used("b", 2);
  EXPECT_EQ(may_have("a", {{"b", {.running = 1}}}, 4), 2);
  EXPECT_EQ(may_have("a", {{"b", {.running = 1, .stuck = 1}}}, 4), 3);
}

TEST_F(SlotSharesTest, TheOldestIsForgotten) {
  for (int i = 0; i < 100; ++i) {
    now_ += std::chrono::milliseconds(1);
    used("user" + std::to_string(i), 1);
  }
  EXPECT_EQ(shares_.tenants(), SlotShares::kTenantsMax);
}

// Whatever the tenants do: no slot is free while somebody waits who has less than the least share, and a tenant that comes back
// finds as many free as it used at once lately, up to its share.
TEST_F(SlotSharesTest, WhoHasLessThanItsShareNeverWaitsForOthers) {
  std::size_t waited = 0;
  std::size_t came_back = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    SlotShares shares;
    const std::size_t slots = 4 + random.next_below(9);
    const std::size_t count = 2 + random.next_below(2);
    const std::vector<std::string> names{"a", "b", "c"};
    const std::size_t share = (slots - 1) / count;
    SlotShares::Uses uses;
    for (int step = 0; step < 300; ++step) {
      now_ += std::chrono::milliseconds(random.next_below(100));
      const std::string& name = names[random.next_below(count)];
      SlotShares::Use& use = uses[name];
      if (random.next_below(3) > 0) {
        ++use.ready;
      } else if (use.running > 0) {
        --use.running;
      }
      shares.note(uses, now_);
      // The tenants take what they may, in any order.
      const std::size_t first = random.next_below(count);
      for (std::size_t i = 0; i < count; ++i) {
        const std::string& taker = names[(first + i) % count];
        const std::size_t taken = std::min(shares.slots_left(taker, uses, slots, now_), uses[taker].ready);
        uses[taker].ready -= taken;
        uses[taker].running += taken;
        shares.note(uses, now_);
      }
      for (const auto& [tenant, each] : uses) {
        if (each.ready == 0 || running(uses) == slots) continue;
        ++waited;
        EXPECT_GE(each.running, share) << "seed " << seed << ": " << tenant << " waits";
      }
    }
    // One ends all of its requests; the others take what they may of its slots; it finds its share when it comes back.
    const std::size_t had = uses["a"].running;
    uses["a"] = {};
    shares.note(uses, now_);
    for (std::size_t i = 1; i < count; ++i) {
      SlotShares::Use& use = uses[names[i]];
      use.ready = slots;
      use.running += shares.slots_left(names[i], uses, slots, now_);
      shares.note(uses, now_);
    }
    came_back += had > 0 ? 1 : 0;
    EXPECT_GE(slots - running(uses), std::min({had, share, slots / 2})) << "seed " << seed;
  }
  EXPECT_GT(waited, 100U);
  EXPECT_GT(came_back, 100U);
}

}  // namespace
}  // namespace uma::sched
