#include "kv/state_table.h"

#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/sim_clock.h"

namespace uma::kv {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Place = StateTable::Place;

class StateTableTest : public ::testing::Test {
 protected:
  StateTableTest() { table_.join("model|settings", true); }

  // A cold state of so many bytes.
  StateId add(const std::string& tenant, const std::string& session, std::vector<Token> tokens, std::uint64_t bytes = 10) {
    StateTable::Entry entry;
    entry.owner.tenant = TenantId{tenant};
    entry.owner.session = SessionId{session};
    entry.family = table_.family_of("model|settings");
    entry.tokens = std::move(tokens);
    entry.file = session + "." + std::to_string(bytes);
    entry.file_bytes = bytes;
    entry.last_used = clock_.now();
    return table_.add(std::move(entry));
  }
  [[nodiscard]] std::optional<PrefixIndex::Match> find(const std::string& tenant, const std::string& session,
                                                       std::vector<Token> chain) const {
    return table_.find({.family = 1, .tenant = TenantId{tenant}, .session = SessionId{session}, .forked_from = {}}, chain);
  }
  void TearDown() override { table_.check_invariants(); }

  testing::SimClock clock_;
  StoreStats stats_;
  StateTable table_{EvictionOrder::value, clock_, stats_};
};

TEST_F(StateTableTest, ABeginningIsFoundForItsTenantOnly) {
  const StateId id = add("a", "s", {1, 2, 3});
  ASSERT_TRUE(find("a", "other", {1, 2, 9}));
  EXPECT_EQ(find("a", "other", {1, 2, 9})->id, id);
  EXPECT_EQ(find("a", "other", {1, 2, 9})->tokens_count, 2U);
  EXPECT_FALSE(find("b", "other", {1, 2, 9}));
}

TEST_F(StateTableTest, StatesWithAdaptersAreNotOfOtherSettings) {
  const auto family = table_.family_of("model|settings|lora 1*1");
  EXPECT_EQ(table_.join("model|settings", true), 0);
  EXPECT_FALSE(family->second.is_outdated);
  (void)table_.join("model|other settings|lora 1*1", true);
  EXPECT_TRUE(family->second.is_outdated);
}

TEST_F(StateTableTest, BytesAreCountedForEachTenantAndShownInTheGauges) {
  const StateId id = add("a", "s", {1}, 7);
  add("b", "t", {2}, 5);
  EXPECT_EQ(table_.bytes().cold, 12U);
  EXPECT_EQ(stats_.cold_bytes.value(), 12);
  EXPECT_EQ(stats_.cold_states.value(), 2);
  EXPECT_EQ(table_.tenants().at(TenantId{"a"}).cold, 7U);
  EXPECT_THAT(table_.remove(id), ElementsAre("s.7")) << "the file that nobody needs any more";
  EXPECT_EQ(table_.bytes().cold, 5U);
  EXPECT_FALSE(table_.tenants().contains(TenantId{"a"}));
}

TEST_F(StateTableTest, APartThatSeveralStatesShareCountsOnceAndGoesWithTheLast) {
  const auto with_parts = [&](Token last, std::vector<ColdPart> parts) {
    const StateId id = add("a", "s" + std::to_string(last), {1, 2, last}, 10);
    std::ignore = table_.drop_file(table_.at(id));
    table_.set_file(table_.at(id), "file " + std::to_string(last), 10, std::move(parts));
    return id;
  };
  const StateId first = with_parts(3, {{"x", 100}, {"y", 50}});
  const StateId second = with_parts(4, {{"x", 100}});
  EXPECT_EQ(table_.bytes().cold, 170U);
  EXPECT_EQ(table_.at(first).cold_bytes(), 160U);
  std::vector<ColdPart> wanted = {{"x", 0}, {"z", 0}};
  EXPECT_FALSE(table_.hold_parts(TenantId{"a"}, wanted)) << "nobody knows the bytes of z";
  wanted[1].bytes = 7;
  EXPECT_TRUE(table_.hold_parts(TenantId{"a"}, wanted));
  EXPECT_EQ(table_.bytes().cold, 177U);
  EXPECT_EQ(wanted[0].bytes, 100U);
  EXPECT_THAT(table_.remove(first), ElementsAre("y", "file 3"));
  EXPECT_THAT(table_.remove(second), ElementsAre("file 4")) << "x is held";
  EXPECT_EQ(table_.bytes().cold, 107U);
  EXPECT_THAT(table_.release_parts(TenantId{"a"}, wanted), ElementsAre("x", "z"));
  EXPECT_TRUE(table_.tenants().empty());
}

// A short state of its own and a long one that shares nearly all with another: removing the long one frees little.
TEST_F(StateTableTest, TheValueOfAStateIsThatOfTheBytesThatItAloneNeeds) {
  const std::vector<Token> long_tokens(100, 7);
  for (const Token last : {1, 2}) {
    std::vector<Token> tokens = long_tokens;
    tokens.push_back(last);
    const StateId id = add("a", "long " + std::to_string(last), tokens);
    std::ignore = table_.drop_file(table_.at(id));
    table_.set_file(table_.at(id), "long " + std::to_string(last), 10, {{"shared", 1000}});
  }
  const StateId alone = add("a", "alone", {3, 4, 5}, 20);
  EXPECT_EQ(table_.least_valuable_in(Place::disk, 2000)->id, alone);
}

TEST_F(StateTableTest, ABusyEntryIsRemovedLaterAndNotFoundMeanwhile) {
  const StateId id = add("a", "s", {1, 2});
  table_.at(id).is_busy = true;
  EXPECT_THAT(table_.remove(id), IsEmpty()) << "its file is still read or written";
  EXPECT_FALSE(find("a", "s", {1, 2}));
  table_.at(id).is_busy = false;
  EXPECT_THAT(table_.remove(id), ElementsAre("s.10"));
  EXPECT_EQ(table_.find(id), nullptr);
}

TEST_F(StateTableTest, ANewStateReplacesItsSessionsFormerOne) {
  const StateOwner owner = table_.at(add("a", "s", {1, 2})).owner;
  add("a", "t", {1, 2});
  EXPECT_THAT(table_.supersede(owner, table_.family_of(1), std::vector<Token>{1, 2, 3}), ElementsAre("s.10"));
  EXPECT_THAT(table_.of_session(SessionId{"s"}), IsEmpty());
  EXPECT_EQ(table_.of_session(SessionId{"t"}).size(), 1U);
}

TEST_F(StateTableTest, WhoeverHasMoreThanAnEqualShareGivesWayFirst) {
  add("a", "s", {1}, 60);
  const StateId least = add("b", "t", {2}, 90);
  EXPECT_FALSE(table_.is_over_share(TenantId{"a"}, Place::disk, 150));
  EXPECT_TRUE(table_.is_over_share(TenantId{"b"}, Place::disk, 150));
  EXPECT_EQ(table_.least_valuable_in(Place::disk, 150)->id, least);
  EXPECT_FALSE(table_.least_valuable_in(Place::memory, 150)) << "nothing is in memory";
  EXPECT_EQ(table_.least_valuable_of(TenantId{"b"})->id, least);
}

TEST_F(StateTableTest, OtherSettingsOfAModelAreOutdatedOnceItIsLoaded) {
  add("a", "s", {1});
  EXPECT_EQ(table_.join("model|settings", true), 0);
  StateTable::Entry entry;
  entry.owner.tenant = TenantId{"a"};
  entry.family = table_.family_of("model|others");
  entry.tokens = {1};
  entry.file = "old";
  entry.file_bytes = 1;
  const StateId old = table_.add(std::move(entry));
  EXPECT_EQ(table_.join("model|settings", true), 1);
  EXPECT_TRUE(table_.view_of(old, table_.at(old), 1).is_foreign);
}

}  // namespace
}  // namespace uma::kv
