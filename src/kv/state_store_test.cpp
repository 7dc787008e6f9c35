#include "kv/state_store.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "kv/state_store_test_support.h"

namespace uma::kv {
namespace {

TEST_F(StateStoreTest, KeepsAStateAndFindsItByItsTokens) {
  make(1000, 1000);
  put("s", numbers(1, 100));
  EXPECT_EQ(tier("s"), Tier::warm);
  EXPECT_EQ(found(numbers(1, 40)), 40);
  Tokens chain = numbers(1, 60);
  chain.push_back(0);
  EXPECT_EQ(found(chain), 60);
  EXPECT_EQ(found(numbers(2, 10)), 0);
  const SnapshotPtr snapshot = store_->take(match(chain)->id);
  ASSERT_TRUE(snapshot);
  EXPECT_EQ(snapshot->tokens, numbers(1, 100));
}

TEST_F(StateStoreTest, WhatMemoryHasNoRoomForGoesToDiskAndComesBack) {
  make(250, 1000);
  put("old", numbers(1000, 100));
  clock_.advance(std::chrono::seconds(100));
  put("newer", numbers(2000, 100));
  put("newest", numbers(3000, 100));
  work();
  EXPECT_EQ(tier("old"), Tier::cold);
  EXPECT_EQ(tier("newer"), Tier::warm);
  EXPECT_EQ(tier("newest"), Tier::warm);
  EXPECT_EQ(cold_->files.size(), 1u);

  const auto stored = match(numbers(1000, 100));
  ASSERT_TRUE(stored);
  EXPECT_EQ(stored->tier, Tier::cold);
  EXPECT_FALSE(store_->take(stored->id));
  SnapshotPtr fetched;
  store_->fetch(stored->id, [&](Expected<SnapshotPtr> snapshot) { fetched = std::move(snapshot).value(); });
  work();
  ASSERT_TRUE(fetched);
  EXPECT_EQ(fetched->tokens, numbers(1000, 100));
  const SessionStates states = store_->states_of(SessionId{"old"});
  EXPECT_EQ(states.tier, Tier::warm);
  EXPECT_EQ(states.warm_bytes, 10'000u);
  EXPECT_EQ(states.cold_bytes, 10'000u);
}

TEST_F(StateStoreTest, ANewStateOfASessionTakesThePlaceOfTheFormer) {
  make(1000, 1000);
  put("s", numbers(1, 50));
  put("s", numbers(1, 80));
  EXPECT_EQ(store_->stats().warm_states.value(), 1);
  EXPECT_EQ(found(numbers(1, 200)), 80);
  // One that is a beginning of it adds nothing.
  put("s", numbers(1, 60));
  EXPECT_EQ(found(numbers(1, 200)), 80);
  // Where the session went another way it does.
  Tokens other = numbers(1, 30);
  other.push_back(9000);
  put("s", other);
  EXPECT_EQ(found(numbers(1, 200)), 30);
}

TEST_F(StateStoreTest, NobodysStatesReplaceTheirBeginningsOnly) {
  make(1000, 1000);
  put("", numbers(1, 50));
  put("", numbers(1, 80));
  put("", numbers(1, 20));
  put("s", numbers(1, 70));
  EXPECT_EQ(store_->stats().warm_states.value(), 2);
  put("", numbers(1, 90));
  EXPECT_EQ(store_->stats().warm_states.value(), 2);
  EXPECT_EQ(found(numbers(1, 200)), 90);
  EXPECT_EQ(tier("s"), Tier::warm);
}

// --- Tenants

TEST_F(StateStoreTest, TenantsShareOnlyWhatIsPublic) {
  make(1000, 1000);
  put("s", numbers(1, 50));
  put("p", numbers(500, 50), true);
  tenant_ = "b";
  EXPECT_EQ(found(numbers(1, 50)), 0);
  EXPECT_EQ(found(numbers(500, 50)), 50);
}

TEST_F(StateStoreTest, ATenantBeyondItsQuotaGivesUpItsOwnLeastValuable) {
  tenant_tokens_ = 250;
  make(1000, 1000);
  tenant_ = "b";
  put("other", numbers(9000, 100));
  clock_.advance(std::chrono::hours(1));
  tenant_ = "a";
  for (int i = 0; i < 4; ++i) {
    put("s" + std::to_string(i), numbers(1000 * (i + 1), 100));
    clock_.advance(std::chrono::seconds(10));
  }
  EXPECT_EQ(tier("s0"), Tier::none);
  EXPECT_EQ(tier("s1"), Tier::none);
  EXPECT_EQ(tier("s2"), Tier::warm);
  EXPECT_EQ(tier("s3"), Tier::warm);
  EXPECT_EQ(tier("other"), Tier::warm) << "the oldest of all, and another tenant's";
  EXPECT_EQ(store_->stats().dropped_total.value(), 2u);
  // One that alone is too large drives out nothing.
  put("s4", numbers(5000, 300));
  EXPECT_EQ(tier("s4"), Tier::none);
  EXPECT_EQ(tier("s3"), Tier::warm);
}

TEST_F(StateStoreTest, AQuotaCountsMemoryAndDiskTogetherAndCopiesGoFirst) {
  tenant_tokens_ = 250;
  make(1000, 1000);
  put("s", numbers(1, 100));
  put("t", numbers(500, 100));
  store_->save_all(kNever);
  work();
  ASSERT_EQ(cold_->files.size(), 2u);
  EXPECT_EQ(store_->stats().cold_bytes.value(), 20'000);
  // In memory as well one of them is beyond the quota, and its copy in memory is all that goes.
  SnapshotPtr fetched;
  store_->fetch(match(numbers(1, 100))->id, [&](Expected<SnapshotPtr> snapshot) { fetched = std::move(snapshot).value(); });
  work();
  EXPECT_TRUE(fetched);
  EXPECT_EQ(tier("s"), Tier::cold);
  EXPECT_EQ(tier("t"), Tier::cold);
  EXPECT_EQ(store_->stats().dropped_total.value(), 0u);
  // A start with a smaller quota keeps to it.
  tenant_tokens_ = 150;
  sessions_.insert({"t"});
  make(1000, 1000);
  work();
  EXPECT_EQ(cold_->files.size(), 1u);
}

TEST_F(StateStoreTest, ATenantThatFillsATierTakesNoOthersShare) {
  make(600, 600);
  tenant_ = "b";
  for (int i = 0; i < 2; ++i) put("b" + std::to_string(i), numbers(10'000 + 1000 * i, 100));
  clock_.advance(std::chrono::hours(10));  // Worth less than everything that comes.
  tenant_ = "a";
  for (int i = 0; i < 30; ++i) {
    put("a" + std::to_string(i), numbers(20'000 + 1000 * i, 100));
    clock_.advance(std::chrono::seconds(1));
    work();
  }
  EXPECT_NE(tier("b0"), Tier::none);
  EXPECT_NE(tier("b1"), Tier::none);
  EXPECT_GT(store_->stats().dropped_total.value(), 10u);
  EXPECT_GE(store_->stats().warm_bytes.value() + store_->stats().cold_bytes.value(), 110'000)
      << "alone, a tenant may use it all";
  // A third that comes gets room from the one that has most.
  tenant_ = "c";
  for (int i = 0; i < 4; ++i) {
    put("c" + std::to_string(i), numbers(60'000 + 1000 * i, 100));
    work();
  }
  for (const char* kept : {"b0", "b1", "c0", "c1", "c2", "c3"}) EXPECT_NE(tier(kept), Tier::none) << kept;
}

TEST_F(StateStoreTest, WhereBitsCountOnlyTheSessionsOwnAndItsParentsAreFound) {
  make(1000, 1000);
  put("parent", numbers(1, 50));
  const auto find = [&](const std::string& session, const std::string& parent) {
    const auto stored = store_->find({.family = family_,
                                      .tenant = TenantId{"a"},
                                      .session = SessionId{session},
                                      .forked_from = SessionId{parent},
                                      .takes_others = false},
                                     numbers(1, 60));
    return stored ? stored->tokens_count : 0;
  };
  EXPECT_EQ(find("parent", ""), 50);
  EXPECT_EQ(find("child", "parent"), 50);
  EXPECT_EQ(find("other", ""), 0);
}

TEST_F(StateStoreTest, AForgottenSessionLeavesNothing) {
  make(150, 1000);
  put("cold", numbers(1, 100));
  clock_.advance(std::chrono::seconds(10));
  put("warm", numbers(500, 100));
  work();
  store_->forget(SessionId{"cold"});
  store_->forget(SessionId{"warm"});
  work();
  EXPECT_TRUE(cold_->files.empty());
  EXPECT_EQ(store_->stats().warm_bytes.value() + store_->stats().cold_bytes.value(), 0);
}

TEST_F(StateStoreTest, ASessionThatEndsWhileItIsWrittenLeavesNothing) {
  make(150, 1000);
  put("s", numbers(1, 100));
  put("t", numbers(500, 100));  // One of them is on its way to disk now.
  store_->forget(SessionId{"s"});
  store_->forget(SessionId{"t"});
  work();
  EXPECT_TRUE(cold_->files.empty());
  EXPECT_EQ(store_->stats().warm_bytes.value() + store_->stats().cold_bytes.value(), 0);
}

TEST_F(StateStoreTest, FamiliesDoNotFindEachOthersStates) {
  make(1000, 1000);
  put("s", numbers(1, 100));
  const FamilyId model = std::exchange(family_, store_->join("other model", false));
  EXPECT_NE(family_, model);
  EXPECT_EQ(found(numbers(1, 100), "s"), 0);
  store_->put({TenantId{"a"}, {}}, snapshot_of(numbers(1, 60), "other model"));
  EXPECT_EQ(found(numbers(1, 100)), 60);
  EXPECT_EQ(found(numbers(1, 50)), 0) << "it cannot be cut";
  family_ = model;
  EXPECT_EQ(found(numbers(1, 50)), 50);
  EXPECT_EQ(store_->join("model", true), model);
}

TEST_F(StateStoreTest, AnEndBeforeTheStartHasReadItsStateIsHeeded) {
  make(1000, 1000);
  put("s", numbers(1, 100));
  store_->save_all(kNever);
  auto cold = std::make_unique<FakeColdStore>();
  cold->files = std::move(cold_->files);
  cold_ = cold.get();
  StateStore store({.warm_bytes_max = 1000 * kTokenBytes, .cold_bytes_max = 1000 * kTokenBytes}, std::move(cold), clock_);
  store.forget(SessionId{"s"});
  store.open(sessions_);
  while (store.step()) {
  }
  EXPECT_TRUE(cold_->files.empty());
  cold_ = nullptr;
}

TEST_F(StateStoreTest, AStartFindsWhatTheLastRunSaved) {
  make(1000, 1000);
  put("s", numbers(1, 100));
  put("", numbers(500, 100));
  put("ended", numbers(900, 50));
  store_->put({TenantId{"a"}, SessionId{"foreign"}}, snapshot_of(numbers(1, 70)));
  store_->save_all(kNever);
  EXPECT_EQ(cold_->files.size(), 4u);
  for (auto& [name, file] : cold_->files) {
    if (file.head.owner.session.value == "foreign") file.head.identity = "another model";
  }
  make(1000, 1000);
  work();
  EXPECT_EQ(tier("s"), Tier::cold);
  EXPECT_EQ(found(numbers(500, 100)), 100);
  EXPECT_EQ(found(numbers(900, 50)), 0) << "its session has ended meanwhile";
  EXPECT_EQ(tier("foreign"), Tier::none);
  EXPECT_EQ(cold_->files.size(), 3u) << "a state of another model is kept";
}

TEST_F(StateStoreTest, TheDiskKeepsTheMostValuableThatFit) {
  make(1000, 250);
  for (int i = 0; i < 3; ++i) {
    put("s" + std::to_string(i), numbers(1000 * (i + 1), 100));
    clock_.advance(std::chrono::seconds(10));
  }
  store_->save_all(kNever);
  work();
  EXPECT_EQ(cold_->files.size(), 2u);
  EXPECT_EQ(tier("s2"), Tier::cold);
  EXPECT_EQ(tier("s1"), Tier::cold);
  EXPECT_LE(store_->stats().cold_bytes.value(), 25'000);
}

TEST_F(StateStoreTest, AFullDiskLosesWhatHasNoRoomAndNothingElse) {
  make(250, 1000);
  cold_->fails = [] { return true; };
  for (int i = 0; i < 5; ++i) {
    put("s" + std::to_string(i), numbers(1000 * (i + 1), 100));
    work();
    clock_.advance(std::chrono::seconds(1));
  }
  EXPECT_EQ(store_->stats().warm_states.value(), 2);
  EXPECT_EQ(tier("s4"), Tier::warm);
  EXPECT_GE(store_->stats().failed_total.value(), 1u);
  cold_->fails = nullptr;
  clock_.advance(std::chrono::minutes(2));
  put("later", numbers(9000, 100));
  work();
  EXPECT_EQ(cold_->files.size(), 1u);
}

TEST_F(StateStoreTest, SessionsMayEndWhileTheLastStatesAreWritten) {
  make(1000, 1000);
  put("s", numbers(1, 100));
  put("t", numbers(500, 100));
  cold_->fails = [this] {
    for (const char* session : {"s", "t"}) store_->forget(SessionId{session});
    return false;
  };
  store_->save_all(kNever);
  cold_->fails = nullptr;
  work();
  EXPECT_TRUE(cold_->files.empty());
}

TEST_F(StateStoreTest, TheEndTriesADiskThatWasFullOnceMore) {
  make(160, 1000);
  cold_->fails = [] { return true; };
  put("s", numbers(1, 100));
  put("t", numbers(500, 100));
  work();
  ASSERT_EQ(store_->stats().failed_total.value(), 1u);
  cold_->fails = nullptr;
  store_->save_all(kNever);
  EXPECT_EQ(cold_->files.size(), 1u);
}

TEST_F(StateStoreTest, AStateThatCannotBeReadIsForgottenAndTheOneWhoAsksIsTold) {
  make(160, 1000);
  put("s", numbers(1, 100));
  clock_.advance(std::chrono::seconds(10));
  put("t", numbers(500, 100));
  work();
  ASSERT_EQ(tier("s"), Tier::cold);
  cold_->fails = [] { return true; };
  bool was_told = false;
  store_->fetch(match(numbers(1, 100))->id, [&](const Expected<SnapshotPtr>& snapshot) { was_told = !snapshot; });
  work();
  EXPECT_TRUE(was_told);
  EXPECT_EQ(found(numbers(1, 100)), 0);
}

TEST_F(StateStoreTest, WhatIsIdleForLongIsArchived) {
  make(1000, 1000);
  put("s", numbers(1, 100));
  clock_.advance(std::chrono::minutes(61));
  store_->step();
  work();
  EXPECT_EQ(tier("s"), Tier::cold);
}

TEST_F(StateStoreTest, WhatIsNotUsedForItsTimeToLiveIsRemoved) {
  make(250, 1000, true, std::chrono::hours(2));
  for (Token first : {1000, 2000, 3000}) put("s" + std::to_string(first), numbers(first, 100));
  work();
  clock_.advance(std::chrono::minutes(100));
  ASSERT_TRUE(store_->take(match(numbers(3000, 100))->id));
  clock_.advance(std::chrono::minutes(21));
  store_->step();
  work();
  EXPECT_EQ(tier("s1000"), Tier::none);
  EXPECT_EQ(tier("s2000"), Tier::none);
  EXPECT_EQ(tier("s3000"), Tier::warm);
  EXPECT_TRUE(cold_->files.empty());
  EXPECT_EQ(store_->stats().expired_total.value(), 2u);
  EXPECT_EQ(store_->stats().dropped_total.value(), 0u);
}

TEST_F(StateStoreTest, AStartRemovesWhatHasExpiredMeanwhile) {
  make(1000, 1000);
  put("s", numbers(1, 100));
  put("foreign", numbers(500, 100));
  store_->save_all(kNever);
  const std::int64_t now_s = clock_.unix_s();
  for (auto& [name, file] : cold_->files) {
    file.head.last_used_s = file.head.owner.session.value == "s" ? now_s - 7200 : now_s - 7100;
  }
  make(1000, 1000, true, std::chrono::hours(2));
  store_->step();
  work();
  EXPECT_EQ(tier("s"), Tier::none);
  EXPECT_EQ(tier("foreign"), Tier::cold);
  EXPECT_EQ(cold_->files.size(), 1u);
}

TEST_F(StateStoreTest, ASessionsStateThatLivesInAContextLeavesMemory) {
  make(1000, 1000);
  put("s", numbers(1, 100));
  const StateId id = match(numbers(1, 100))->id;
  store_->settle(id, {.family = family_, .tenant = TenantId{"a"}, .session = SessionId{"other"}, .forked_from = {}});
  EXPECT_EQ(tier("s"), Tier::warm);
  store_->settle(id, {.family = family_, .tenant = TenantId{"a"}, .session = SessionId{"s"}, .forked_from = {}});
  EXPECT_EQ(tier("s"), Tier::none);
}

// Of states that cannot be cut those stay that a session still goes through: a reply that was thrown away is no way back.
TEST_F(StateStoreTest, StatesThatASessionDoesNotGoThroughAnyMoreMakeRoomForNoOthers) {
  make(10'000, 0, false);
  for (std::int32_t turn = 1; turn <= 6; ++turn) put("s", numbers(1, 50 * static_cast<std::size_t>(turn)));
  EXPECT_EQ(store_->stats().warm_states.value(), 4);
  for (Token again = 0; again < 8; ++again) {
    Tokens other = numbers(1, 290);
    other.push_back(9000 + again);
    put("s", other);
    EXPECT_EQ(found(other, "s"), 291);
  }
  EXPECT_EQ(store_->stats().warm_states.value(), 4);
  EXPECT_EQ(found(numbers(1, 299), "s"), 250);
  EXPECT_EQ(found(numbers(1, 249), "s"), 200);
  put("s", numbers(1, 220));
  EXPECT_EQ(store_->stats().warm_states.value(), 3) << "rewound to the end of the fourth turn";
  EXPECT_EQ(found(numbers(1, 299), "s"), 220);
}

TEST_F(StateStoreTest, StatesThatCannotBeCutAreFoundAsAWholeAndKeptFromSeveralTurns) {
  make(1000, 1000, false);
  for (std::size_t turn = 1; turn <= 6; ++turn) put("s", numbers(1, 10 * turn));
  EXPECT_EQ(store_->stats().warm_states.value(), 4);
  EXPECT_EQ(found(numbers(1, 55), "s"), 50);
  EXPECT_EQ(found(numbers(1, 35), "s"), 30);
  EXPECT_EQ(found(numbers(1, 25), "s"), 0);
}

}  // namespace
}  // namespace uma::kv
