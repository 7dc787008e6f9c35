// States of the StateStore in a store that daemons share.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kv/state_store_test_support.h"
#include "testing/fake_shared_store.h"

namespace uma::kv {
namespace {

using testing::FakeSharedStore;
using Content = FakeSharedStore::Content;
using Urgency = SharedWriter::Urgency;

const TenantId kTenant{"a"};

// A daemon with a store of its own, and the shared one.
struct Node {
  Node(const std::shared_ptr<Content>& content, const Clock& clock, const std::string& identity = "model",
       std::size_t warm_tokens = 10'000, std::size_t cold_tokens = 10'000)
      : shared(std::make_unique<FakeSharedStore>(content), std::make_unique<FakeSharedStore>(content), clock),
        store({.warm_bytes_max = warm_tokens * kTokenBytes,
               .cold_bytes_max = cold_tokens * kTokenBytes,
               .archive_after = std::chrono::minutes(5),
               .shared_tokens_min = 16},
              std::make_unique<FakeColdStore>(), clock, &shared) {
    store.open({});
    family = store.join(identity, true);
    identity_ = identity;
  }

  void work() {
    bool any = true;
    while (any) {
      any = store.step();
      any = shared.writer.step() || any;
      any = shared.reader.step() || any;
      store.check_invariants();
    }
  }
  void put(const std::string& session, const Tokens& tokens) {
    store.put({kTenant, SessionId{session}}, snapshot_of(tokens, identity_));
    work();
  }
  void publish(const std::string& session) {
    bool is_done = false;
    store.publish(SessionId{session}, Urgency::soon, [&] { is_done = true; });
    work();
    EXPECT_TRUE(is_done);
  }
  // Its newest state is not read yet.
  void find_shared(const std::string& session) {
    bool is_done = false;
    store.look_up(kTenant, SessionId{session}, [&] { is_done = true; });
    (void)shared.reader.step();
    EXPECT_TRUE(is_done);
  }
  void look_up(const std::string& session) {
    find_shared(session);
    work();
  }
  // States of other nodes can be found, but not be read.
  void have_no_memory() { store.limit_memory({.at_rest = kTokenBytes, .in_all = kTokenBytes}); }
  std::optional<StoredMatch> find(const std::string& session, const Tokens& chain) {
    return store.find({.family = family, .tenant = kTenant, .session = SessionId{session}, .forked_from = {}}, chain);
  }
  Expected<SnapshotPtr> fetch(StateId id) {
    Expected<SnapshotPtr> result = fail(ErrorCode::io_failed, "no answer");
    store.fetch(id, [&](Expected<SnapshotPtr> snapshot) { result = std::move(snapshot); });
    work();
    return result;
  }

  SharedStates shared;
  StateStore store;
  FamilyId family = 0;
  std::string identity_;
};

class SharedStoreOfStates : public ::testing::Test {
 protected:
  testing::SimClock clock_;
  std::shared_ptr<Content> content_ = std::make_shared<Content>();
  Node a_{content_, clock_};
  Node b_{content_, clock_};
};

TEST_F(SharedStoreOfStates, AStateMovesToAnotherNode) {
  a_.put("s", numbers(1, 100));
  a_.publish("s");
  EXPECT_FALSE(b_.find("s", numbers(1, 120)));
  b_.find_shared("s");
  const auto match = b_.find("s", numbers(1, 120));
  ASSERT_TRUE(match);
  EXPECT_EQ(match->tier, Tier::shared);
  EXPECT_EQ(match->tokens_count, 100);
  EXPECT_TRUE(match->is_own);
  EXPECT_GT(match->fetch_ms, 0);
  const auto snapshot = b_.fetch(match->id);
  ASSERT_TRUE(snapshot);
  EXPECT_EQ((*snapshot)->tokens, numbers(1, 100));
  EXPECT_EQ(b_.find("s", numbers(1, 120))->tier, Tier::warm);
}

TEST_F(SharedStoreOfStates, AStateThatWasFoundIsReadBeforeARequestAsksForIt) {
  a_.put("s", numbers(1, 100));
  a_.publish("s");
  b_.look_up("s");
  EXPECT_EQ(b_.find("s", numbers(1, 120))->tier, Tier::warm);
}

TEST_F(SharedStoreOfStates, AStateThatTakesLongToReadIsReadWhenARequestAsksForIt) {
  a_.put("s", numbers(1, 100));
  a_.publish("s");
  content_->states.begin()->second.head.bytes = std::uint64_t{1} << 30;
  b_.look_up("s");
  const auto match = b_.find("s", numbers(1, 120));
  ASSERT_TRUE(match);
  EXPECT_EQ(match->tier, Tier::shared);
  EXPECT_TRUE(b_.fetch(match->id));
}

TEST_F(SharedStoreOfStates, AStateThatIsThereIsNotWrittenAgain) {
  a_.put("s", numbers(1, 100));
  a_.publish("s");
  a_.publish("s");
  EXPECT_EQ(a_.shared.stats.writes_total.value(), 1U);
  a_.put("s", numbers(1, 150));
  a_.publish("s");
  EXPECT_EQ(a_.shared.stats.writes_total.value(), 2U);
  EXPECT_EQ(content_->states.size(), 1U);
}

TEST_F(SharedStoreOfStates, ShortStatesAndUnknownSessionsAreAnsweredAtOnce) {
  a_.put("s", numbers(1, 15));
  a_.publish("s");
  a_.publish("unknown");
  EXPECT_TRUE(content_->states.empty());
}

TEST_F(SharedStoreOfStates, AStateOnDiskIsReadAndShared) {
  a_.put("s", numbers(1, 100));
  clock_.advance(std::chrono::minutes(6));
  a_.work();
  a_.work();  // Writes what the first step has found.
  ASSERT_EQ(a_.find("s", numbers(1, 120))->tier, Tier::cold);
  a_.publish("s");
  EXPECT_EQ(content_->states.size(), 1U);
}

TEST_F(SharedStoreOfStates, OtherIdentitiesAreNotFetched) {
  Node other(content_, clock_, "model|other");
  a_.put("s", numbers(1, 100));
  a_.publish("s");
  other.look_up("s");
  EXPECT_FALSE(other.find("s", numbers(1, 120)));
  EXPECT_EQ(other.shared.stats.found_total.value(), 0U);
}

TEST_F(SharedStoreOfStates, AStateThatVanishedIsForgotten) {
  a_.put("s", numbers(1, 100));
  a_.publish("s");
  b_.find_shared("s");
  content_->states.clear();
  const StateId id = b_.find("s", numbers(1, 120))->id;
  EXPECT_FALSE(b_.fetch(id));
  EXPECT_FALSE(b_.find("s", numbers(1, 120)));
  EXPECT_FALSE(b_.fetch(id));
}

TEST_F(SharedStoreOfStates, AStateWithOtherTokensIsForgotten) {
  a_.put("s", numbers(1, 100));
  a_.publish("s");
  b_.find_shared("s");
  content_->states.begin()->second.snapshot = snapshot_of(numbers(7, 100));
  EXPECT_FALSE(b_.fetch(b_.find("s", numbers(1, 120))->id));
  EXPECT_FALSE(b_.find("s", numbers(1, 120)));
}

TEST_F(SharedStoreOfStates, ARequestIsToldOfAStateThatCouldNotBeReadBeforeItAsked) {
  a_.put("s", numbers(1, 100));
  a_.publish("s");
  b_.find_shared("s");
  content_->states.begin()->second.snapshot = snapshot_of(numbers(7, 100));
  b_.work();
  const auto match = b_.find("s", numbers(1, 120));
  ASSERT_TRUE(match);
  EXPECT_FALSE(b_.fetch(match->id));
  EXPECT_EQ(b_.shared.stats.reads_total.value(), 1U);
  EXPECT_FALSE(b_.find("s", numbers(1, 120)));
}

TEST_F(SharedStoreOfStates, AStoreThatIsDownHasNoStates) {
  a_.put("s", numbers(1, 100));
  content_->fails = [] { return true; };
  a_.publish("s");
  b_.look_up("s");
  EXPECT_FALSE(b_.find("s", numbers(1, 120)));
  EXPECT_EQ(a_.find("s", numbers(1, 120))->tier, Tier::warm);
}

TEST_F(SharedStoreOfStates, TwoRequestsShareOneRead) {
  a_.put("s", numbers(1, 100));
  a_.publish("s");
  b_.find_shared("s");
  const StateId id = b_.find("s", numbers(1, 120))->id;
  int read_count = 0;
  for (int i = 0; i < 2; ++i) {
    b_.store.fetch(id, [&](const Expected<SnapshotPtr>& snapshot) { read_count += snapshot ? 1 : 0; });
  }
  EXPECT_FALSE(b_.store.step()) << "the store's thread has no part in it";
  b_.work();
  EXPECT_EQ(read_count, 2);
  EXPECT_EQ(b_.shared.stats.reads_total.value(), 1U);
}

TEST_F(SharedStoreOfStates, AReadThatIsTooLateEndsForAllThatWait) {
  a_.put("s", numbers(1, 100));
  a_.publish("s");
  b_.find_shared("s");
  const StateId id = b_.find("s", numbers(1, 120))->id;
  int refused_count = 0;
  for (int i = 0; i < 2; ++i) {
    b_.store.fetch(id, [&](const Expected<SnapshotPtr>& snapshot) { refused_count += snapshot ? 0 : 1; });
  }
  clock_.advance(std::chrono::seconds(31));
  b_.work();
  EXPECT_EQ(refused_count, 2);
}

TEST_F(SharedStoreOfStates, ALookupReplacesTheOneBeforeIt) {
  b_.have_no_memory();
  a_.put("s", numbers(1, 100));
  a_.publish("s");
  b_.look_up("s");
  a_.put("s", numbers(1, 200));
  a_.publish("s");
  b_.look_up("s");
  EXPECT_EQ(b_.find("s", numbers(1, 300))->tokens_count, 200);
  content_->states.clear();
  b_.look_up("s");
  EXPECT_FALSE(b_.find("s", numbers(1, 300)));
}

TEST_F(SharedStoreOfStates, AStateThatIsHereIsNotLookedUpTwice) {
  a_.put("s", numbers(1, 100));
  a_.publish("s");
  a_.look_up("s");
  EXPECT_EQ(a_.find("s", numbers(1, 120))->tier, Tier::warm);
  EXPECT_EQ(a_.store.states_of(SessionId{"s"}).tier, Tier::warm);
}

TEST_F(SharedStoreOfStates, WhatTheMemoryLosesIsStillShared) {
  Node small(content_, clock_, "model", 150, 0);
  small.put("s", numbers(1, 100));
  small.publish("s");
  small.put("other", numbers(1000, 100));
  const auto match = small.find("s", numbers(1, 120));
  ASSERT_TRUE(match);
  EXPECT_EQ(match->tier, Tier::shared);
  EXPECT_TRUE(small.fetch(match->id));
}

TEST_F(SharedStoreOfStates, OneThatIsNotUsedIsForgottenHereAndStaysThere) {
  b_.have_no_memory();
  a_.put("s", numbers(1, 100));
  a_.publish("s");
  b_.look_up("s");
  clock_.advance(std::chrono::minutes(11));
  b_.work();
  EXPECT_FALSE(b_.find("s", numbers(1, 120)));
  EXPECT_EQ(content_->states.size(), 1U);
}

TEST_F(SharedStoreOfStates, AtTheEndAllButWhatOthersOwnIsStored) {
  for (const std::string session : {"mine", "also mine", "let go"}) a_.put(session, numbers(1, 100));
  a_.put("short", numbers(1, 3));
  a_.store.publish_all({{"mine"}, {"also mine"}, {"short"}, {"unknown"}});
  a_.work();
  EXPECT_EQ(content_->states.size(), 2U);
  b_.look_up("mine");
  EXPECT_TRUE(b_.find("mine", numbers(1, 120)));
}

TEST_F(SharedStoreOfStates, WhatIsWrittenToDiskAtTheEndStaysInMemoryUntilItIsShared) {
  a_.put("s", numbers(1, 100));
  a_.store.publish_all({{"s"}});
  a_.store.save_all(kNever);
  ASSERT_TRUE(content_->states.empty());
  a_.work();
  EXPECT_EQ(content_->states.size(), 1U);
}

TEST_F(SharedStoreOfStates, AStateThatWaitsIsNotStoredWhenItsSessionHasMovedOn) {
  a_.put("s", numbers(1, 100));
  bool is_done = false;
  a_.store.publish(SessionId{"s"}, Urgency::when_idle, [&] { is_done = true; });
  a_.store.let_go(SessionId{"s"});
  b_.put("s", numbers(1, 200));
  b_.publish("s");
  a_.work();
  EXPECT_TRUE(is_done);
  a_.publish("s");
  b_.look_up("s");
  ASSERT_EQ(content_->states.size(), 1U);
  EXPECT_EQ(content_->states.begin()->second.head.tokens.size(), 200U) << "the older state has replaced it";
  a_.store.take_back(SessionId{"s"});
  a_.publish("s");
  EXPECT_EQ(content_->states.begin()->second.head.tokens.size(), 100U) << "the session was taken again";
}

TEST_F(SharedStoreOfStates, AStateThatIsWantedWhileItWaitsIsStoredOnce) {
  a_.put("s", numbers(1, 100));
  int done_count = 0;
  for (const Urgency urgency : {Urgency::when_idle, Urgency::soon}) {
    a_.store.publish(SessionId{"s"}, urgency, [&] { ++done_count; });
  }
  a_.work();
  EXPECT_EQ(done_count, 2);
  EXPECT_EQ(a_.shared.stats.writes_total.value(), 1U);
}

TEST_F(SharedStoreOfStates, ADeletedSessionLeavesNothing) {
  a_.put("s", numbers(1, 100));
  a_.publish("s");
  a_.store.forget(SessionId{"s"});
  a_.store.remove_shared(kTenant, SessionId{"s"});
  a_.work();
  EXPECT_TRUE(content_->states.empty());
}

TEST_F(SharedStoreOfStates, ASessionThatIsForgottenWhileItIsReadLeavesNothing) {
  a_.put("s", numbers(1, 100));
  a_.publish("s");
  b_.find_shared("s");
  bool is_called = false;
  b_.store.fetch(b_.find("s", numbers(1, 120))->id, [&](const Expected<SnapshotPtr>&) { is_called = true; });
  b_.store.forget(SessionId{"s"});
  b_.work();
  EXPECT_TRUE(is_called);
  EXPECT_FALSE(b_.find("s", numbers(1, 120)));
  EXPECT_EQ(b_.store.states_of(SessionId{"s"}).tier, Tier::none);
}

}  // namespace
}  // namespace uma::kv
