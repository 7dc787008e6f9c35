// States that are written to disk while they stay in their context, or in memory (StoreOptions::write_within).
#include <chrono>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kv/disk/state_file.h"
#include "kv/state_store_test_support.h"

namespace uma::kv {
namespace {

class EarlyWrites : public StateStoreTest {
 protected:
  EarlyWrites() { write_within_ = std::chrono::seconds(5); }

  [[nodiscard]] StateOwner owner(const std::string& session) const {
    return {.tenant = TenantId{tenant_}, .session = SessionId{session}, .is_public = false};
  }
  // In pieces of ten tokens.
  EarlyWrite begin(const std::string& session, const Tokens& tokens) {
    std::vector<std::int32_t> ends;
    for (const SnapshotPiece& piece : in_pieces(tokens, 10).pieces) ends.push_back(piece.end);
    return store_->begin_early(owner(session), "model", tokens, ends, tokens.size() * kTokenBytes);
  }
  // The state without its first pieces.
  static Snapshot rest(const Tokens& tokens, std::size_t known) {
    Snapshot snapshot = in_pieces(tokens, 10);
    for (std::size_t i = 0; i < known; ++i) snapshot.pieces[i].bytes.clear();
    return snapshot;
  }
  // Returns the number of pieces that were written; 0: none.
  std::size_t write(const std::string& session, const Tokens& tokens) {
    const EarlyWrite begun = begin(session, tokens);
    if (begun.id == 0) return 0;
    const bool is_written = write_now(begun, rest(tokens, begun.known));
    store_->end_early(begun.id);
    work();
    return is_written ? in_pieces(tokens, 10).pieces.size() - begun.known : 0;
  }
  // Whether the disk has written it.
  bool write_now(const EarlyWrite& begun, Snapshot snapshot) {
    std::optional<bool> is_written;
    store_->write_early(begun.id, std::move(snapshot), [&](bool told) { is_written = told; });
    EXPECT_FALSE(is_written);
    work();
    return is_written.value();
  }
  // So many tokens that all begin with, and others of its own.
  static Tokens begins_alike(Token own, std::size_t count = 45) {
    Tokens tokens = numbers(1, 30);
    tokens.resize(count, own);
    return tokens;
  }
  SnapshotPtr fetch(const Tokens& tokens) {
    SnapshotPtr fetched;
    store_->fetch(match(tokens).value().id, [&](Expected<SnapshotPtr> read) { fetched = read ? *read : nullptr; });
    work();
    return fetched;
  }
};

TEST_F(EarlyWrites, AGrowingStateIsWrittenOnce) {
  make(1000, 1000);
  EXPECT_EQ(write("s", numbers(1, 35)), 4u);
  EXPECT_EQ(tier("s"), Tier::cold);
  EXPECT_EQ(write("s", numbers(1, 58)), 3u) << "the last piece of the first write was shorter";
  EXPECT_EQ(store_->stats().cold_states.value(), 1) << "the former one has gone";
  EXPECT_EQ(cold_->files.size(), 1u);
  EXPECT_EQ(cold_->pieces.size(), 5u);
  EXPECT_EQ(begin("s", numbers(1, 58)).id, 0u) << "it is there";
  EXPECT_EQ(begin("s", numbers(1, 20)).id, 0u) << "a longer one is there";
  make(1000, 1000);  // A crash.
  const SnapshotPtr read = fetch(numbers(1, 58));
  ASSERT_TRUE(read);
  EXPECT_EQ(checksum_of(*read), checksum_of(in_pieces(numbers(1, 58), 10)));
}

TEST_F(EarlyWrites, ALongStateIsWrittenInParts) {
  make(1000, 1000);
  const Tokens tokens = numbers(1, 58);
  const EarlyWrite begun = begin("s", tokens);
  EXPECT_TRUE(write_now(begun, in_pieces(numbers(1, 30), 10)));
  EXPECT_EQ(tier("s"), Tier::none);
  EXPECT_EQ(cold_->pieces.size(), 3u);
  EXPECT_TRUE(write_now(begun, rest(tokens, 3)));
  store_->end_early(begun.id);
  EXPECT_TRUE(fetch(tokens));
  // What has been written of one that is given up goes.
  const EarlyWrite given_up = begin("t", numbers(500, 58));
  EXPECT_TRUE(write_now(given_up, in_pieces(numbers(500, 30), 10)));
  store_->end_early(given_up.id);
  work();
  EXPECT_EQ(cold_->pieces.size(), 5u);
}

TEST_F(EarlyWrites, ConversationsThatBeginAlikeAreStoredOnceUpToThere) {
  make(1000, 100);  // Room for less than both.
  Tokens other = numbers(1, 60);
  other.resize(70, 9000);
  write("s", numbers(1, 70));
  EXPECT_EQ(write("t", other), 1u);
  EXPECT_EQ(tier("s"), Tier::cold);
  EXPECT_EQ(tier("t"), Tier::cold);
  EXPECT_LE(store_->stats().cold_bytes.value(), static_cast<std::int64_t>(100 * kTokenBytes));
  store_->forget(SessionId{"s"});
  work();
  EXPECT_EQ(cold_->pieces.size(), 6u) << "the other one needs them";
  EXPECT_TRUE(fetch(other));
  tenant_ = "b";
  EXPECT_EQ(begin("u", numbers(1, 30)).known, 0u) << "tenants share nothing";
}

// Its end may come before the disk has begun to write or after it, and before the lane hears of that or after it.
TEST_F(EarlyWrites, NothingStaysOfASessionThatEndedMeanwhile) {
  for (const int order : {0, 1, 2, 3}) {
    make(1000, 1000);
    const EarlyWrite begun = begin("s", numbers(1, 35));
    std::optional<bool> is_written;
    if (order == 3) store_->forget(SessionId{"s"});
    store_->write_early(begun.id, in_pieces(numbers(1, 35), 10), [&](bool told) { is_written = told; });
    if (order < 2) store_->forget(SessionId{"s"});
    if (order == 0) store_->end_early(begun.id);
    work();
    EXPECT_EQ(is_written, order == 2);
    if (order == 2) store_->forget(SessionId{"s"});
    if (order > 0) store_->end_early(begun.id);
    work();
    EXPECT_EQ(tier("s"), Tier::none) << order;
    EXPECT_TRUE(cold_->files.empty()) << order;
    EXPECT_TRUE(cold_->pieces.empty()) << order;
  }
}

TEST_F(EarlyWrites, WhatAWriteHasFoundOnDiskStaysForIt) {
  make(1000, 1000);
  write("s", numbers(1, 35));
  const EarlyWrite begun = begin("t", numbers(1, 40));
  EXPECT_EQ(begun.known, 3u);
  store_->forget(SessionId{"s"});
  work();
  EXPECT_TRUE(write_now(begun, rest(numbers(1, 40), 3)));
  store_->end_early(begun.id);
  EXPECT_TRUE(fetch(numbers(1, 40)));
}

TEST_F(EarlyWrites, WhatLeavesItsContextIsWrittenAtOnceAndStaysInMemory) {
  make(1000, 1000);
  put("s", numbers(1, 30));
  work();
  EXPECT_EQ(tier("s"), Tier::warm);
  EXPECT_EQ(cold_->files.size(), 1u);
  // One that was written before is not written again.
  write("t", numbers(500, 30));
  const std::uint64_t before = store_->stats().written_bytes_total.value();
  put("t", numbers(500, 30));
  work();
  EXPECT_EQ(tier("t"), Tier::warm);
  EXPECT_EQ(store_->stats().written_bytes_total.value(), before);
}

TEST_F(EarlyWrites, ADiskThatFailsLeavesNothingAndIsAskedLater) {
  make(1000, 1000);
  cold_->fails = [] { return true; };
  EXPECT_EQ(write("s", numbers(1, 35)), 0u);
  EXPECT_EQ(tier("s"), Tier::none);
  EXPECT_EQ(store_->stats().cold_bytes.value(), 0);
  EXPECT_GT(begin("s", numbers(1, 35)).again_after, Duration(0));
  cold_->fails = nullptr;
  clock_.advance(std::chrono::minutes(2));
  EXPECT_EQ(write("s", numbers(1, 35)), 4u);
}

TEST_F(EarlyWrites, AStateThatCannotFitIsNotBegun) {
  tenant_tokens_ = 50;
  make(1000, 100);
  put("old", numbers(900, 20));
  EXPECT_EQ(begin("s", numbers(1, 60)).id, 0u) << "beyond the quota";
  tenant_tokens_ = 0;
  make(1000, 100);
  EXPECT_EQ(begin("s", numbers(1, 101)).id, 0u) << "beyond the disk";
}

// A state in memory stays, and is written again.
TEST_F(EarlyWrites, APartThatIsLostIsForgottenByAllThatHaveIt) {
  make(1000, 1000);
  for (const Token own : {9001, 9002, 9003}) EXPECT_GT(write("s" + std::to_string(own), begins_alike(own)), 0u);
  write("other", numbers(500, 35));
  EXPECT_TRUE(fetch(begins_alike(9003)));
  cold_->pieces.erase(parts_of(owner(""), "model", begins_alike(1), std::vector<std::int32_t>{10, 20}).front().name);
  EXPECT_FALSE(fetch(begins_alike(9001)));
  EXPECT_EQ(tier("s9001"), Tier::none);
  EXPECT_EQ(tier("s9002"), Tier::none);
  EXPECT_EQ(tier("s9003"), Tier::warm);
  EXPECT_EQ(tier("other"), Tier::cold);
  EXPECT_GT(store_->states_of(SessionId{"s9003"}).cold_bytes, 0u);
  EXPECT_GT(write("s9002", begins_alike(9002)), 0u);
  EXPECT_TRUE(fetch(begins_alike(9002)));
}

TEST_F(EarlyWrites, AStateThatCannotBeReadTakesNoOthersWithIt) {
  for (const bool is_damaged : {false, true}) {
    make(1000, 1000);
    cold_->files.clear();
    for (const Token own : {9001, 9002, 9003}) EXPECT_GT(write("s" + std::to_string(own), begins_alike(own)), 0u);
    for (auto& [name, file] : cold_->files) file.is_damaged = is_damaged && file.head.owner.session.value == "s9001";
    if (!is_damaged) cold_->fails = [n = 0]() mutable { return n++ == 0; };
    EXPECT_FALSE(fetch(begins_alike(9001)));
    cold_->fails = nullptr;
    EXPECT_EQ(tier("s9001"), Tier::none);
    for (const Token own : {9002, 9003}) EXPECT_TRUE(fetch(begins_alike(own)));
    EXPECT_EQ(cold_->files.size(), 2u);
    for (const Token own : {9001, 9002, 9003}) store_->forget(SessionId{"s" + std::to_string(own)});
    work();
  }
}

TEST_F(EarlyWrites, WrongKvIsUsedByNobodyWhoSharesIt) {
  make(1000, 1000);
  write("s", begins_alike(9001));
  write("t", begins_alike(9002));
  const EarlyWrite begun = begin("u", begins_alike(9003));
  const EarlyWrite complete = begin("v", begins_alike(9004));
  const EarlyWrite beside = begin("w", numbers(700, 35));
  EXPECT_EQ(begun.known, 3u);
  store_->write_early(complete.id, rest(begins_alike(9004), complete.known), [](bool) {});
  EXPECT_TRUE(match(begins_alike(9001)));
  store_->discard(match(begins_alike(9001)).value().id);
  work();
  EXPECT_FALSE(write_now(begun, rest(begins_alike(9003), 3)));
  EXPECT_FALSE(write_now(beside, rest(numbers(700, 35), 0))) << "it may be from the same cells";
  for (const EarlyWrite& each : {begun, complete, beside}) store_->end_early(each.id);
  work();
  for (const char* session : {"s", "t", "u", "v", "w"}) EXPECT_EQ(tier(session), Tier::none) << session;
  EXPECT_TRUE(cold_->files.empty());
  EXPECT_TRUE(cold_->pieces.empty());
  EXPECT_EQ(begin("u", begins_alike(9003)).known, 0u);
}

TEST_F(EarlyWrites, APartThatIsRemovedOrTruncatedFromOutsideIsWrittenAgain) {
  for (const std::size_t left : {0, 1}) {
    make(1000, 1000);
    write("s", begins_alike(9001));
    const std::string part = parts_of(owner(""), "model", begins_alike(1), std::vector<std::int32_t>{10, 20}).front().name;
    cold_->pieces.at(part).resize(left);
    if (left == 0) cold_->pieces.erase(part);
    EXPECT_EQ(write("t", begins_alike(9002)), 0u) << "that is how it is found";
    EXPECT_EQ(write("t", begins_alike(9002)), 5u);
    EXPECT_TRUE(fetch(begins_alike(9002)));
    store_->forget(SessionId{"t"});
    work();
    EXPECT_TRUE(cold_->pieces.empty());
  }
}

TEST_F(EarlyWrites, NothingIsWrittenOfAStateThatFindsNoRoom) {
  make(1000, 100);
  write("old", numbers(5000, 60));
  for (int i = 0; i < 30; ++i) EXPECT_TRUE(store_->take(match(numbers(5000, 60)).value().id) || fetch(numbers(5000, 60)));
  const std::uint64_t before = store_->stats().written_bytes_total.value();
  EXPECT_EQ(write("s", numbers(1, 58)), 0u) << "the other one is worth more";
  EXPECT_EQ(store_->stats().written_bytes_total.value(), before);
  EXPECT_EQ(tier("old"), Tier::warm);
  EXPECT_EQ(write("s", numbers(1, 38)), 4u);
}

TEST_F(EarlyWrites, AQuotaIsKeptAlsoWhileAStateIsWritten) {
  tenant_tokens_ = 70;
  make(1000, 1000);
  write("old", numbers(500, 40));
  clock_.advance(std::chrono::hours(1));
  EXPECT_EQ(write("s", numbers(1, 58)), 6u);
  EXPECT_EQ(tier("s"), Tier::cold);
  EXPECT_EQ(tier("old"), Tier::none);
}

TEST_F(EarlyWrites, AStateThatIsInItsContextAgainLeavesMemoryAfterItsWrite) {
  make(1000, 1000);
  put("s", numbers(1, 30));  // It is on its way to disk.
  const StateId id = match(numbers(1, 30)).value().id;
  ASSERT_TRUE(store_->take(id));
  store_->settle(id, {.family = family_, .tenant = TenantId{tenant_}, .session = SessionId{"s"}, .forked_from = {}});
  EXPECT_EQ(tier("s"), Tier::warm);
  work();
  EXPECT_EQ(tier("s"), Tier::cold);
  EXPECT_EQ(store_->stats().warm_bytes.value(), 0);
}

// One that goes to disk cannot give way to another.
TEST_F(EarlyWrites, StatesDoNotWaitForASlowDisk) {
  make(100, 1000);
  store_->limit_memory({.at_rest = 100 * kTokenBytes, .in_all = 125 * kTokenBytes});
  for (Token i = 0; i < 12; ++i) {
    Snapshot snapshot = snapshot_of(numbers(1000 * (i + 1), 25));
    auto room = store_->make_room(snapshot.bytes(), GiveWay::at_once);
    ASSERT_TRUE(room) << i;
    snapshot.room = std::move(*room);
    store_->put(owner("s" + std::to_string(i)), std::move(snapshot));
    store_->check_invariants();
  }
  EXPECT_EQ(tier("s11"), Tier::warm);
  work();
  for (const char* session : {"s8", "s9", "s10", "s11"})
    EXPECT_GT(store_->states_of(SessionId{session}).cold_bytes, 0u) << session;
}

TEST_F(EarlyWrites, AStateThatIsInMemoryOnlyIsWrittenWhenItsContextIs) {
  make(1000, 1000);
  cold_->fails = [] { return true; };
  put("s", numbers(1, 30));
  work();
  EXPECT_TRUE(cold_->files.empty());
  cold_->fails = nullptr;
  clock_.advance(std::chrono::minutes(2));
  EXPECT_EQ(begin("s", numbers(1, 30)).id, 0u);
  work();
  EXPECT_EQ(cold_->files.size(), 1u);
  EXPECT_EQ(tier("s"), Tier::warm);
}

TEST_F(EarlyWrites, TheDiskIsNotOverfilledByLastPiecesBesideTheHeadsOfParts) {
  make(1000, 90);
  cold_->part_head_bytes = 4 * kTokenBytes;  // More than the last pieces.
  for (const Token first : {1, 500}) {
    store_->put(owner("s" + std::to_string(first)), in_pieces(numbers(first, 35), 10));
    work();
    EXPECT_GT(store_->stats().cold_bytes.value(), static_cast<std::int64_t>(45 * kTokenBytes));
    EXPECT_LE(store_->stats().cold_bytes.value(), static_cast<std::int64_t>(90 * kTokenBytes));
    clock_.advance(std::chrono::minutes(1));
  }
  EXPECT_EQ(cold_->files.size(), 1u);
}

// Otherwise nothing would be written or read any more.
TEST_F(EarlyWrites, ADiskThatWasSlowOnceIsAskedAgain) {
  make(1'000'000, 1'000'000);
  const Tokens tokens = numbers(1, 100'000);
  write("s", tokens);
  const double usual_ms = store_->read_ms(1'000'000);
  cold_->fails = [this] {
    clock_.advance(std::chrono::seconds(10));
    return false;
  };
  EXPECT_TRUE(fetch(tokens));
  EXPECT_GT(store_->read_ms(1'000'000), 10 * usual_ms);
  for (int minute = 0; minute < 600; ++minute) {
    clock_.advance(std::chrono::minutes(1));
    work();
  }
  EXPECT_LT(store_->read_ms(1'000'000), 1.1 * usual_ms);
}

TEST_F(EarlyWrites, WhatIsComputedFasterThanReadIsNotWritten) {
  make(25, 1000);
  store_->put(owner("s"), snapshot_of(numbers(1, 20)), Keep::in_memory);
  put("t", numbers(500, 20));
  work();
  EXPECT_EQ(tier("s"), Tier::none) << "memory has no room for both";
  EXPECT_EQ(tier("t"), Tier::warm);
  EXPECT_EQ(cold_->files.size(), 1u);
  EXPECT_FALSE(store_->has_place_for(TenantId{tenant_}, 10 * kTokenBytes, Keep::in_memory));
  EXPECT_TRUE(store_->has_place_for(TenantId{tenant_}, 10 * kTokenBytes, Keep::anywhere));
}

TEST_F(EarlyWrites, AfterAKillTheLaterOfTwoStatesIsTheSessions) {
  make(1000, 1000);
  write("s", numbers(1, 30));
  write("t", numbers(500, 20));
  const Tokens first = cold_->files.begin()->second.head.tokens;
  const Tokens last = std::prev(cold_->files.end())->second.head.tokens;
  std::int64_t age_s = 0;
  for (auto& [name, file] : cold_->files) {
    file.head.last_used_s = clock_.unix_s() - age_s;  // The first one of the folder is the newest.
    file.head.owner.session = SessionId{"s"};
    age_s += 100;
  }
  make(1000, 1000);
  store_->prefetch(SessionId{"s"});
  work();
  const auto tier_of = [&](const Tokens& tokens) {
    return store_->find({.family = family_, .tenant = TenantId{tenant_}, .session = SessionId{"s"}, .forked_from = {}}, tokens)
        .value()
        .tier;
  };
  EXPECT_EQ(tier_of(first), Tier::warm);
  EXPECT_EQ(tier_of(last), Tier::cold);
}

TEST_F(EarlyWrites, TheBytesOfADayAreLimitedAndCountedWithoutWhatIsShared) {
  day_tokens_ = 100;
  make(1000, 1000);
  write("s", numbers(1, 70));
  write("s", numbers(1, 80));
  const auto of_day = store_->stats().written_day_bytes.value();
  EXPECT_GE(of_day, static_cast<std::int64_t>(80 * (kTokenBytes - sizeof(Token))));
  EXPECT_LT(of_day, static_cast<std::int64_t>(100 * kTokenBytes)) << "what was shared is not written again";
  write("t", numbers(500, 30));
  EXPECT_GT(begin("u", numbers(900, 10)).again_after, Duration(0));
  put("u", numbers(900, 10));
  work();
  EXPECT_EQ(cold_->files.size(), 2u) << "what leaves its context waits for memory to be full";
  clock_.advance(std::chrono::hours(25));
  EXPECT_EQ(write("v", numbers(700, 10)), 1u);
}

TEST_F(EarlyWrites, OneTenantsDayIsNotTheOthers) {
  day_tokens_ = 100;
  make(1000, 1000);
  write("s", numbers(1, 110));
  EXPECT_GT(begin("s", numbers(1, 120)).again_after, Duration(0));
  tenant_ = "b";
  EXPECT_EQ(write("t", numbers(500, 40)), 4u);
}

TEST_F(EarlyWrites, BytesOfWritesThatFailedAreCounted) {
  make(1000, 1000);
  cold_->fails = [n = 0]() mutable { return ++n == 3; };  // The third part.
  EXPECT_EQ(write("s", numbers(1, 35)), 0u);
  EXPECT_EQ(store_->stats().written_day_bytes.value(), static_cast<std::int64_t>(20 * (kTokenBytes - sizeof(Token))));
  EXPECT_TRUE(cold_->pieces.empty());
  clock_.advance(std::chrono::hours(25));
  work();
  EXPECT_EQ(store_->stats().written_day_bytes.value(), 0) << "also while nothing is written";
}

}  // namespace
}  // namespace uma::kv
