#include "kv/state_store.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "testing/fake_cold_store.h"
#include "testing/sim_clock.h"

namespace uma::kv {
namespace {

using testing::FakeColdStore;
using Tokens = std::vector<Token>;

constexpr std::size_t kTokenBytes = 100;

Tokens numbers(Token first, std::size_t count) {
  Tokens tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<Token>(i);
  return tokens;
}

StateImage image_of(const Tokens& tokens, const std::string& identity = "model") {
  StateImage image;
  image.identity = identity;
  image.tokens = tokens;
  image.pieces.push_back({0, static_cast<std::int32_t>(tokens.size()), Bytes(tokens.size() * (kTokenBytes - sizeof(Token)))});
  return image;
}

class StateStoreTest : public ::testing::Test {
 protected:
  // Room for so many tokens' states in each tier.
  void make(std::size_t warm_tokens, std::size_t cold_tokens, bool can_cut = true, Duration ttl = Duration(0)) {
    auto cold = std::make_unique<FakeColdStore>();
    if (cold_ != nullptr) cold->files = std::move(cold_->files);
    cold_ = cold.get();
    store_ = std::make_unique<StateStore>(StoreOptions{.warm_bytes_max = warm_tokens * kTokenBytes,
                                                       .cold_bytes_max = cold_tokens * kTokenBytes,
                                                       .tenant_bytes_max = tenant_tokens_ * kTokenBytes,
                                                       .ttl = ttl,
                                                       .cold_tokens_min = 1},
                                          std::move(cold), clock_);
    store_->open(sessions_);
    family_ = store_->join("model", can_cut);
  }

  void put(const std::string& session, const Tokens& tokens, bool is_public = false) {
    store_->put({TenantId{tenant_}, SessionId{session}, is_public}, image_of(tokens));
    store_->check_invariants();
  }

  void work() {
    while (store_->step()) store_->check_invariants();
    store_->check_invariants();
  }

  // The tokens found for a chain, and where; 0 for none.
  std::int32_t found(const Tokens& chain, const std::string& session = "") {
    const auto match =
        store_->find({.family = family_, .tenant = TenantId{tenant_}, .session = SessionId{session}, .forked_from = {}}, chain);
    return match ? match->tokens_count : 0;
  }
  std::optional<StoredMatch> match(const Tokens& chain) {
    return store_->find({.family = family_, .tenant = TenantId{tenant_}, .session = {}, .forked_from = {}}, chain);
  }
  Tier tier(const std::string& session) { return store_->states_of(SessionId{session}).tier; }

  testing::SimClock clock_;
  FakeColdStore* cold_ = nullptr;  // the store's own
  std::unique_ptr<StateStore> store_;
  FamilyId family_ = 0;
  std::string tenant_ = "a";
  std::size_t tenant_tokens_ = 0;                               // whose states a tenant may have; 0: no quota
  std::unordered_set<SessionId> sessions_{{"s"}, {"foreign"}};  // at the start
};

TEST_F(StateStoreTest, KeepsAStateAndFindsItByItsTokens) {
  make(1000, 1000);
  put("s", numbers(1, 100));
  EXPECT_EQ(tier("s"), Tier::warm);
  EXPECT_EQ(found(numbers(1, 40)), 40);
  Tokens chain = numbers(1, 60);
  chain.push_back(0);
  EXPECT_EQ(found(chain), 60);
  EXPECT_EQ(found(numbers(2, 10)), 0);
  const ImagePtr image = store_->take(match(chain)->id);
  ASSERT_TRUE(image);
  EXPECT_EQ(image->tokens, numbers(1, 100));
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
  ImagePtr fetched;
  store_->fetch(stored->id, [&](Expected<ImagePtr> image) { fetched = std::move(image).value(); });
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
  ImagePtr fetched;
  store_->fetch(match(numbers(1, 100))->id, [&](Expected<ImagePtr> image) { fetched = std::move(image).value(); });
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
  clock_.advance(std::chrono::hours(10));  // worth less than everything that comes
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
  put("t", numbers(500, 100));  // one of them is on its way to disk now
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
  store_->put({TenantId{"a"}, {}}, image_of(numbers(1, 60), "other model"));
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
  store_->put({TenantId{"a"}, SessionId{"foreign"}}, image_of(numbers(1, 70)));
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
  store_->fetch(match(numbers(1, 100))->id, [&](const Expected<ImagePtr>& image) { was_told = !image; });
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

// Everything at once, in an order that a seed decides, with a disk that fails.
// --- The limit of memory
// -------------------------------------------------------------------------------------------------------

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
  const ImagePtr taken = store_->take(match(numbers(1, 100))->id);
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
    Expected<ImagePtr> got = ImagePtr();
    store_->fetch(match(numbers(1, 100))->id, [&](Expected<ImagePtr> image) { got = std::move(image); });
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
    store.put({TenantId{"a"}, SessionId{std::to_string(i)}, false}, image_of(numbers(1000 * (i + 1), 100)));
  }
  EXPECT_EQ(store.memory_bytes(), 30'000u);
  ByteBudget::Share elsewhere = *store.pool().reserve(0);
  elsewhere.correct(15'000);  // than was foretold
  EXPECT_FALSE(store.pool().reserve(1));
  store.put({TenantId{"a"}, SessionId{"2"}, false}, image_of(numbers(3000, 101)));
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
    StateImage image;
    image.identity = "model";
    image.tokens = numbers(100 * (i + 1), 50);
    image.pieces.push_back({0, 50, store.pool().take(kBig)});
    store.put({TenantId{"a"}, SessionId{std::to_string(i % 20)}, false}, std::move(image));
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
            store_->fetch(stored->id, [&](const Expected<ImagePtr>& image) {
              --owed;
              if (image) {
                EXPECT_FALSE((*image)->tokens.empty());
              }
            });
          }
          break;
        case 4:
          if (const auto stored = match(tokens)) {
            if (const ImagePtr image = store_->take(stored->id)) {
              EXPECT_GE(common_prefix(image->tokens, tokens), 1u);
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
