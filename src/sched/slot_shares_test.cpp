#include "sched/slot_shares.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"

namespace uma::sched {
namespace {

constexpr std::size_t kSlots = 8;

class SlotSharesTest : public ::testing::Test {
 protected:
  // The number of slots that the tenant may have, as others use theirs.
  std::size_t may_have(const std::string& tenant, SlotShares::Uses uses, std::size_t slots = kSlots) {
    const auto used = [&] {
      std::size_t all = 0;
      for (const auto& [name, use] : uses) all += use.running;
      return all;
    };
    while (used() < slots && shares_.may_take(tenant, uses, slots, now_)) ++uses[tenant].running;
    return uses[tenant].running;
  }
  void ask(const std::string& tenant, int requests = 1) {
    for (int i = 0; i < requests; ++i) shares_.enter(tenant, now_);
  }
  void end(const std::string& tenant, int requests = 1) {
    for (int i = 0; i < requests; ++i) shares_.leave(tenant, now_);
  }

  SlotShares shares_;
  TimePoint now_ = TimePoint{} + std::chrono::hours(5);
};

TEST_F(SlotSharesTest, OneTenantHasAll) {
  ask("a", 20);
  EXPECT_FALSE(shares_.are_many());
  EXPECT_EQ(may_have("a", {}), 8);
}

TEST_F(SlotSharesTest, AsManyAreKeptAsTheOtherHadAtOnce) {
  ask("a", 20);
  ask("b", 3);
  EXPECT_EQ(may_have("a", {}), 5);
  EXPECT_EQ(may_have("a", {{"b", {.running = 2}}}), 5);
  end("b", 3);
  EXPECT_EQ(may_have("a", {}), 5);
  now_ += SlotShares::kLately;
  EXPECT_EQ(may_have("a", {}), 5);
}

TEST_F(SlotSharesTest, NoMoreThanAnEqualShareIsKept) {
  ask("a", 20);
  ask("b", 20);
  EXPECT_EQ(may_have("a", {}), 4);
  EXPECT_EQ(may_have("b", {{"a", {.running = 4}}}), 4);
  ask("c", 1);
  EXPECT_EQ(may_have("a", {}), 4);  // c takes one, and the rest of its share is left to the two.
  EXPECT_EQ(may_have("b", {{"a", {.running = 4}}}), 3);
}

// Of eight slots for three, two are left over: they are kept for one who had three requests and has none now.
TEST_F(SlotSharesTest, TheRestIsKeptForWhoDoesNotWait) {
  for (const std::string tenant : {"a", "b", "c"}) ask(tenant, 3);
  const SlotShares::Uses quiet{{"a", {.running = 3, .ready = 1}}, {"b", {.running = 2}}, {"c", {.running = 2}}};
  EXPECT_EQ(may_have("a", quiet), 3);
  const SlotShares::Uses waiting{{"a", {.running = 3}}, {"b", {.running = 2, .ready = 1}}, {"c", {.running = 2, .ready = 1}}};
  EXPECT_EQ(may_have("a", waiting), 4);
}

TEST_F(SlotSharesTest, OneIsKeptForAnHour) {
  ask("b", 3);
  end("b", 3);
  now_ += 2 * SlotShares::kLately;
  ask("a", 20);
  EXPECT_EQ(may_have("a", {}), 7);
  EXPECT_EQ(may_have("a", {}, 3), 3);  // Too few to leave one unused.
  now_ += SlotShares::kRemembered;
  EXPECT_EQ(may_have("a", {}), 8);
}

// A request that takes longer than tenants are remembered counts for the time after it, too.
TEST_F(SlotSharesTest, ALongRequestCounts) {
  ask("b", 2);
  now_ += std::chrono::minutes(10);
  ask("a", 20);
  EXPECT_EQ(may_have("a", {{"b", {.running = 2}}}), 6);
  end("b", 2);
  EXPECT_EQ(may_have("a", {}), 6);
}

// Half of the slots are enough for twenty who ask now and then.
TEST_F(SlotSharesTest, AtMostHalfIsKeptForTheAbsent) {
  for (int i = 0; i < 20; ++i) {
    ask("user" + std::to_string(i));
    end("user" + std::to_string(i));
  }
  ask("a", 20);
  EXPECT_EQ(may_have("a", {}), 4);
  EXPECT_EQ(may_have("a", {}, 1), 1);
}

TEST_F(SlotSharesTest, TheOldestIsForgotten) {
  ask("open");
  for (int i = 0; i < 100; ++i) {
    now_ += std::chrono::milliseconds(1);
    ask("user" + std::to_string(i));
    end("user" + std::to_string(i));
  }
  end("open");  // Not forgotten: it was open.
  now_ += 2 * SlotShares::kRemembered;
  ask("a", 20);
  EXPECT_EQ(may_have("a", {}), 8);
}

// Whatever the tenants do: who waits gets a slot while one is free and not kept for somebody, who has less than the least share
// gets one at once, and what is kept is there when its owner comes.
TEST_F(SlotSharesTest, WhoHasLessThanItsShareNeverWaitsForOthers) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    SlotShares shares;
    const std::size_t slots = 1 + random.next_below(9);
    const std::vector<std::string> names{"a", "b", "c", "d"};
    const std::size_t count = 1 + random.next_below(names.size());
    SlotShares::Uses uses;
    for (int step = 0; step < 400; ++step) {
      now_ += std::chrono::milliseconds(random.next_below(2000));
      const std::string& name = names[random.next_below(count)];
      SlotShares::Use& use = uses[name];
      if (random.next_below(2) == 0) {
        shares.enter(name, now_);
        ++use.ready;
      } else if (use.running > 0) {
        shares.leave(name, now_);
        --use.running;
      }
      const auto running = [&] {
        std::size_t all = 0;
        for (const auto& [tenant, each] : uses) all += each.running;
        return all;
      };
      // The tenants take what they may, in any order.
      bool took = true;
      while (took && running() < slots) {
        took = false;
        const std::size_t first = random.next_below(count);
        for (std::size_t i = 0; i < count && running() < slots; ++i) {
          const std::string& taker = names[(first + i) % count];
          SlotShares::Use& taken = uses[taker];
          if (taken.ready == 0 || !shares.may_take(taker, uses, slots, now_)) continue;
          --taken.ready;
          ++taken.running;
          took = true;
        }
      }
      if (running() == slots) continue;
      for (const auto& [tenant, each] : uses) {
        EXPECT_TRUE(each.ready == 0 || each.running >= std::max<std::size_t>(1, (slots - 1) / count))
            << "seed " << seed << ": " << tenant << " waits with " << each.running << " of " << slots;
      }
    }
  }
}

}  // namespace
}  // namespace uma::sched
