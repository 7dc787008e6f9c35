// The limit of memory, which states on their way count against too.
#include <chrono>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "base/random.h"
#include "kv/state_store_test_support.h"

namespace uma::kv {
namespace {

TEST_F(StateStoreTest, ABurstStaysWithinWhatMayBeUnderWay) {
  make(1000, 10'000);
  store_->limit_memory({.at_rest = 20'000, .in_all = 40'000});
  for (int i = 0; i < 10; ++i) {
    clock_.advance(std::chrono::seconds(1));
    put("s" + std::to_string(i), numbers(1000 * (i + 1), 100));
    EXPECT_LE(store_->memory_bytes(), 40'000u) << i;
  }
  EXPECT_FALSE(store_->pool().reserve(10'000));
  work();
  EXPECT_EQ(store_->memory_bytes(), 20'000u);
  EXPECT_EQ(cold_->files.size(), 2u) << "as many as there was memory for while they were written";
  EXPECT_EQ(store_->stats().dropped_total.value(), 6u);
  EXPECT_EQ(tier("s9"), Tier::warm);
  EXPECT_TRUE(store_->pool().reserve(20'000));
  EXPECT_FALSE(store_->pool().reserve(20'001));
}

TEST_F(StateStoreTest, RoomForAStateIsMadeByDiskOrAtOnce) {
  make(1000, 10'000);
  store_->limit_memory({.at_rest = 40'000, .in_all = 40'000});
  for (int i = 0; i < 4; ++i) {
    clock_.advance(std::chrono::seconds(1));
    put("s" + std::to_string(i), numbers(1000 * (i + 1), 100));
  }
  EXPECT_FALSE(store_->make_room(40'001, GiveWay::at_once)) << "there never will be, so nothing gives way";
  EXPECT_FALSE(store_->make_room(20'000, GiveWay::by_disk));
  EXPECT_EQ(store_->memory_bytes(), 40'000u) << "not yet";
  EXPECT_FALSE(store_->make_room(20'000, GiveWay::by_disk)) << "asking again sends no more away";
  work();
  EXPECT_EQ(tier("s0"), Tier::cold);
  EXPECT_EQ(tier("s1"), Tier::cold);
  EXPECT_EQ(tier("s2"), Tier::warm);
  const auto slow = store_->make_room(20'000, GiveWay::by_disk);
  EXPECT_TRUE(slow);
  EXPECT_EQ(store_->stats().dropped_total.value(), 0u) << "nothing was lost";

  const auto fast = store_->make_room(10'000, GiveWay::at_once);
  EXPECT_TRUE(fast);
  EXPECT_EQ(tier("s2"), Tier::none);
  EXPECT_EQ(store_->stats().dropped_total.value(), 1u);
  EXPECT_EQ(store_->memory_bytes(), 40'000u);
  EXPECT_FALSE(store_->make_room(20'000, GiveWay::at_once)) << "what is left would not do";
  EXPECT_EQ(tier("s3"), Tier::warm);
  store_->check_invariants();
}

TEST_F(StateStoreTest, AStateThatMustLeaveMemoryIsGivenUpWhereDiskDoesNotTakeIt) {
  make(1000, 100);
  put("s", numbers(1, 100));
  for (int i = 0; i < 5; ++i) (void)store_->take(match(numbers(1, 100))->id);
  store_->limit_memory({.at_rest = 0, .in_all = 10'000});
  work();
  ASSERT_EQ(tier("s"), Tier::cold) << "disk is full, of what is used often";
  store_->limit_memory({.at_rest = 20'000, .in_all = 20'000});
  put("x", numbers(1000, 100));
  clock_.advance(std::chrono::seconds(1));
  put("y", numbers(2000, 100));
  EXPECT_FALSE(store_->make_room(10'000, GiveWay::by_disk));
  work();
  EXPECT_TRUE(store_->make_room(10'000, GiveWay::by_disk));
  EXPECT_EQ(tier("x"), Tier::none);
  EXPECT_EQ(tier("y"), Tier::warm);
  EXPECT_EQ(tier("s"), Tier::cold);
}

TEST_F(StateStoreTest, AStateThatALaneHasMakesNoRoom) {
  make(1000, 10'000);
  store_->limit_memory({.at_rest = 20'000, .in_all = 20'000});
  put("s", numbers(1, 100));
  clock_.advance(std::chrono::seconds(1));
  put("t", numbers(1000, 100));
  const SnapshotPtr taken = store_->take(match(numbers(1, 100))->id);
  EXPECT_FALSE(store_->make_room(20'000, GiveWay::at_once));
  EXPECT_EQ(tier("t"), Tier::warm);
  EXPECT_TRUE(store_->make_room(10'000, GiveWay::at_once));
  EXPECT_EQ(tier("s"), Tier::warm);
  EXPECT_EQ(tier("t"), Tier::none);
}

TEST_F(StateStoreTest, AStateIsReadWhenOthersHaveGoneToDiskForIt) {
  make(1000, 10'000);
  put("s", numbers(1, 100));
  store_->limit_memory({.at_rest = 0, .in_all = 10'000});
  work();
  store_->limit_memory({.at_rest = 10'000, .in_all = 10'000});
  put("t", numbers(1000, 80));
  ASSERT_EQ(tier("s"), Tier::cold);
  const auto fetch = [&] {
    Expected<SnapshotPtr> got = SnapshotPtr();
    store_->fetch(match(numbers(1, 100))->id, [&](Expected<SnapshotPtr> snapshot) { got = std::move(snapshot); });
    for (int i = 0; i < 4; ++i) {
      work();
      clock_.advance(std::chrono::seconds(1));
    }
    return got;
  };
  {
    const auto lanes = store_->pool().reserve(2'000);
    ASSERT_TRUE(lanes);
    const auto got = fetch();
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, ErrorCode::limit_wait);
  }
  // The file is a little more than the state takes, as those of a disk are.
  store_->limit_memory({.at_rest = 10'000, .in_all = 13'000});
  const auto got = fetch();
  ASSERT_TRUE(got);
  EXPECT_EQ((*got)->tokens, numbers(1, 100));
  EXPECT_EQ((*got)->room.bytes(), 10'000u);
  EXPECT_EQ(tier("t"), Tier::cold);
  EXPECT_EQ(store_->stats().dropped_total.value(), 0u);
}

TEST_F(StateStoreTest, ALowerLimitSendsStatesToDiskWhileTheirMemoryIsStillPaidFor) {
  make(1000, 10'000);
  for (int i = 0; i < 5; ++i) put("s" + std::to_string(i), numbers(1000 * (i + 1), 100));
  store_->limit_memory({.at_rest = 20'000, .in_all = 50'000});
  store_->check_invariants();
  EXPECT_EQ(store_->memory_bytes(), 50'000u) << "nothing is lost";
  work();
  EXPECT_EQ(store_->memory_bytes(), 20'000u);
  EXPECT_EQ(cold_->files.size(), 3u);
  EXPECT_EQ(store_->stats().dropped_total.value(), 0u);
  store_->limit_memory({.at_rest = 10'000, .in_all = 10'000});
  store_->check_invariants();
  EXPECT_EQ(store_->memory_bytes(), 10'000u) << "what is not paid for goes at once";
  EXPECT_EQ(store_->stats().dropped_total.value(), 1u);
}

TEST_F(StateStoreTest, AStateOnItsWayToDiskCountsUntilItIsThere) {
  make(100, 1000);
  put("s", numbers(1, 100));
  cold_->fails = [] { return true; };
  store_->limit_memory({.at_rest = 0, .in_all = 10'000});
  EXPECT_EQ(store_->memory_bytes(), 10'000u);
  work();
  // It could not be written, so there is no place for it.
  EXPECT_EQ(store_->memory_bytes(), 0u);
  EXPECT_EQ(store_->stats().dropped_total.value(), 1u);
  EXPECT_EQ(tier("s"), Tier::none);
}

TEST_F(StateStoreTest, WhatLanesHaveOfStatesTakesRoomFromThoseAtRest) {
  StateStore store({.warm_bytes_max = 100'000}, nullptr, clock_);
  store.open({});
  (void)store.join("model", true);
  store.limit_memory({.at_rest = 30'000, .in_all = 40'000});
  for (int i = 0; i < 3; ++i) {
    clock_.advance(std::chrono::seconds(1));
    store.put({TenantId{"a"}, SessionId{std::to_string(i)}, false}, snapshot_of(numbers(1000 * (i + 1), 100)));
  }
  EXPECT_EQ(store.memory_bytes(), 30'000u);
  ByteBudget::Share elsewhere = *store.pool().reserve(0);
  elsewhere.correct(15'000);  // Than was foretold.
  EXPECT_FALSE(store.pool().reserve(1));
  store.put({TenantId{"a"}, SessionId{"2"}, false}, snapshot_of(numbers(3000, 101)));
  EXPECT_EQ(store.stats().warm_states.value(), 2) << "one had to go, not all";
  EXPECT_EQ(store.states_of(SessionId{"2"}).tier, Tier::warm);
  store.check_invariants();
}

TEST_F(StateStoreTest, MemoryKeptForTheNextStatesIsPartOfTheLimit) {
  constexpr std::size_t kBig = std::size_t{2} << 20;
  StateStore store({.warm_bytes_max = 64 * kBig}, nullptr, clock_);
  store.open({});
  (void)store.join("model", true);
  store.limit_memory({.at_rest = 16 * kBig, .in_all = 16 * kBig});
  for (int i = 0; i < 40; ++i) {
    Snapshot snapshot;
    snapshot.identity = "model";
    snapshot.tokens = numbers(100 * (i + 1), 50);
    snapshot.pieces.push_back({0, 50, store.pool().take(kBig)});
    store.put({TenantId{"a"}, SessionId{std::to_string(i % 20)}, false}, std::move(snapshot));
    store.check_invariants();
    EXPECT_LE(store.memory_bytes(), 16 * kBig);
  }
  EXPECT_GT(store.pool().idle_bytes(), 0u);
  const std::uint64_t before = store.memory_bytes();
  store.expect(kBig, 2);
  while (store.step()) {
  }
  EXPECT_LE(store.memory_bytes(), 16 * kBig);
  EXPECT_GE(before, 13 * kBig);
  store.limit_memory({.at_rest = 0, .in_all = 0});
  EXPECT_EQ(store.memory_bytes(), 0u);
}

TEST_F(StateStoreTest, TheMemoryOfAStateThatIsNotKeptIsUsedAgain) {
  constexpr std::size_t kBig = std::size_t{2} << 20;
  StateStore store({.warm_bytes_max = 64 * kBig}, nullptr, clock_);
  store.open({});
  const FamilyId family = store.join("model", true);
  store.limit_memory({.at_rest = 64 * kBig, .in_all = 64 * kBig});
  const StateOwner owner{TenantId{"a"}, SessionId{}, false};
  const auto put_tokens = [&](int count) {
    Snapshot snapshot;
    snapshot.identity = "model";
    snapshot.tokens = numbers(0, static_cast<std::size_t>(count));
    snapshot.pieces.push_back({0, count, store.pool().take(kBig)});
    store.put(owner, std::move(snapshot));
  };
  put_tokens(50);
  EXPECT_TRUE(store.has_in_memory(owner, family, numbers(0, 50)));
  EXPECT_TRUE(store.has_in_memory(owner, family, numbers(0, 40)));
  EXPECT_FALSE(store.has_in_memory(owner, family, numbers(0, 60)));
  EXPECT_FALSE(store.has_in_memory({TenantId{"b"}, SessionId{}, false}, family, numbers(0, 50)));
  for (const int count : {50, 40}) {
    put_tokens(count);
    EXPECT_TRUE(store.pool().has(kBig)) << count;
    (void)store.pool().take(kBig);
  }
}

TEST_F(StateStoreTest, MemoryThatALaneWaitsForIsMadeWithoutPauses) {
  constexpr std::size_t kLarge = std::size_t{8} << 20;
  StateStore store({.warm_bytes_max = 16 * kLarge, .is_busy = [] { return true; }}, nullptr, clock_);
  store.open({});
  store.limit_memory({.at_rest = 16 * kLarge, .in_all = 16 * kLarge});
  const auto make_at_once = [&] {
    for (int i = 0; i < 10; ++i) store.step();
  };
  store.expect(kLarge, 1);
  make_at_once();
  EXPECT_FALSE(store.pool().has(kLarge)) << "models compute, and nobody waits";
  store.want(kLarge);
  store.expect(2 * kLarge, 1);
  make_at_once();
  EXPECT_TRUE(store.pool().has(kLarge)) << "what others announce does not end it";
  (void)store.pool().take(kLarge);
  store.expect(kLarge, 1);
  make_at_once();
  EXPECT_FALSE(store.pool().has(kLarge)) << "nobody waits any more";
}

TEST_F(StateStoreTest, HoldsItsInvariantsWhateverHappens) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    cold_ = nullptr;
    tenant_tokens_ = random.next_below(2) == 0 ? 0 : 50 + random.next_below(300);
    make(100 + random.next_below(300), random.next_below(600), random.next_below(4) != 0);
    cold_->fails = [&] { return random.next_below(8) == 0; };
    std::int64_t owed = 0;
    for (int i = 0; i < 400; ++i) {
      const std::string session = random.next_below(4) == 0 ? "" : "s" + std::to_string(random.next_below(6));
      tenant_ = session.empty() || session < "s3" ? "a" : "b";
      const Tokens tokens = numbers(static_cast<Token>(1000 * random.next_below(5)), 1 + random.next_below(80));
      switch (random.next_below(10)) {
        case 0:
        case 1:
          put(session, tokens, random.next_below(5) == 0);
          break;
        case 2:
          if (!session.empty()) store_->forget(SessionId{session});
          break;
        case 3:
          if (const auto stored = match(tokens)) {
            ++owed;
            store_->fetch(stored->id, [&](const Expected<SnapshotPtr>& snapshot) {
              --owed;
              if (snapshot) {
                EXPECT_FALSE((*snapshot)->tokens.empty());
              }
            });
          }
          break;
        case 4:
          if (const auto stored = match(tokens)) {
            if (const SnapshotPtr snapshot = store_->take(stored->id)) {
              EXPECT_GE(common_prefix(snapshot->tokens, tokens), 1u);
            }
            store_->settle(stored->id,
                           {.family = family_, .tenant = TenantId{tenant_}, .session = SessionId{session}, .forked_from = {}});
          }
          break;
        case 5:
          clock_.advance(std::chrono::seconds(random.next_below(1800)));
          break;
        case 6:
          if (random.next_below(4) == 0) {
            const std::uint64_t at_rest = random.next_below(30'000);
            store_->limit_memory({.at_rest = at_rest, .in_all = at_rest + random.next_below(10'000)});
          }
          break;
        default:
          store_->step();
      }
      store_->check_invariants();
    }
    work();
    EXPECT_EQ(owed, 0);
    store_->save_all(kNever);
    store_->check_invariants();
  }
}

}  // namespace
}  // namespace uma::kv
