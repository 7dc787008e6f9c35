// The session tables of several daemons that share a catalog.
#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/move_only_function.h"
#include "base/random.h"
#include "engine/engine_test_support.h"
#include "engine/session/session_table.h"
#include "testing/shared_catalog.h"
#include "testing/sim_clock.h"

namespace uma::engine {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A daemon's table, and what delivers answers to it.
class Node {
 public:
  Node(testing::SharedSessions& shared, int number, testing::SimClock& clock, Limits limits = {}, bool shares_states = false,
       std::size_t record_bytes_max = 1 << 20)
      : catalog(shared, number), random_(static_cast<std::uint64_t>(number)), clock_(clock) {
    SessionTableOptions options;
    options.limits = limits;
    options.record_bytes_max = record_bytes_max;
    options.random = [this] { return random_.next_u64(); };
    options.on_committed = [](const kv::SessionRecord&) {};
    options.on_ended = [this](const Session& session) { ended.push_back(session.summary.id.value); };
    if (shares_states) {
      options.on_taken = [this](const Session& session) { events.push_back("taken " + session.summary.id.value); };
      options.on_given_up = [this](const Session& session) { events.push_back("given up " + session.summary.id.value); };
      options.publish = [this](const Session& session, bool is_wanted, Promise<Unit> reply) {
        events.push_back((is_wanted ? "wanted " : "idle ") + session.summary.id.value);
        publishing_.push_back(std::move(reply));
      };
    }
    table.emplace(std::move(options), catalog, tasks_, clock_);
  }
  ~Node() {
    tasks_.end_all();
    while (!posted_.empty()) std::exchange(posted_, {}).clear();
    table.reset();
  }
  void work() {
    while (!posted_.empty()) {
      for (auto& command : std::exchange(posted_, {})) command();
      table->check_invariants();
    }
  }
  template <class T>
  Expected<T> result_of(Task<Expected<T>> task) {
    std::optional<Expected<T>> result;
    tasks_.answer([&](Expected<T> got) { result.emplace(std::move(got)); }, std::move(task));
    work();
    return std::move(result).value();
  }
  // The result comes in a later work().
  template <class T>
  void begin(std::optional<Expected<T>>& result, Task<Expected<T>> task) {
    tasks_.answer([&result](Expected<T> got) { result.emplace(std::move(got)); }, std::move(task));
  }
  void add(kv::SessionRecord made) {
    const SessionLock lock = table->add(std::move(made), 0);
    EXPECT_TRUE(result_of(table->commit(*lock, lock->record)));
  }
  template <class T>
  void start(Task<Expected<T>> task, std::type_identity_t<MoveOnlyFunction<void(Expected<T>)>> on_result) {
    tasks_.answer(std::move(on_result), std::move(task));
    work();
  }
  Expected<SessionLock> lock(const std::string& session) { return result_of(table->lock(kTenant, session)); }
  std::string refusal(const std::string& session) {
    const auto locked = lock(session);
    return locked ? "" : std::string(code_name(locked.error().code));
  }
  // Adds `tokens` tokens to the chain.
  Expected<Unit> grow(Session& session, std::size_t tokens) {
    kv::SessionRecord next = *session.record;
    next.chain.insert(next.chain.end(), tokens, 2);
    return result_of(table->commit(session, std::move(next)));
  }
  void sync() {
    clock_.advance(milliseconds(500));
    run_due();
  }
  // Asks for changes, and leaves the answer unread.
  void begin_sync() {
    clock_.advance(milliseconds(500));
    tasks_.timers().run_due();
  }
  // What is due without an advance of the clock.
  void run_due() {
    tasks_.timers().run_due();
    work();
  }
  TimePoint next_due() { return tasks_.timers().next(); }
  Session* find(const std::string& session) { return table->find(kTenant, session); }
  // The states that are being stored are stored now.
  void end_publishing() {
    for (Promise<Unit>& reply : std::exchange(publishing_, {})) reply(Unit{});
    work();
  }

  testing::SharedCatalog catalog;
  std::vector<std::string> ended;
  std::vector<std::string> events;  // Events of the exchange of states, if there is one.
  std::optional<SessionTable> table;

 private:
  Random random_;
  std::vector<MoveOnlyFunction<void()>> posted_;
  testing::SimClock& clock_;
  TaskRunner tasks_{[this](MoveOnlyFunction<void()> command) { posted_.push_back(std::move(command)); }, clock_};
  std::vector<Promise<Unit>> publishing_;
};

class SharedSessionsTest : public ::testing::Test {
 protected:
  SharedSessionsTest() { init_log(LogLevel::error); }

  kv::SessionRecord record(const std::string& id, const std::string& name = "", std::int64_t ttl_s = 0) {
    kv::SessionRecord made;
    made.id = SessionId{id};
    made.tenant = kTenant;
    made.name = name;
    made.mode = SessionMode::text;
    made.ttl_s = ttl_s;
    made.created_s = made.last_used_s = clock_.unix_s();
    made.chain = {1};
    made.turns = {{.tokens_begin = 0, .reply_begin = 1, .messages_begin = 0}};
    return made;
  }

  testing::SimClock clock_;
  testing::SharedSessions shared_;
  Node a_{shared_, 1, clock_};
  Node b_{shared_, 2, clock_};
};

TEST_F(SharedSessionsTest, OthersListASessionAndItsNameAfterAWhile) {
  a_.add(record("s", "diary"));
  EXPECT_EQ(b_.find("diary"), nullptr);
  b_.sync();
  ASSERT_NE(b_.find("diary"), nullptr);
  EXPECT_EQ(b_.find("diary")->summary.tokens_count, 1);
  EXPECT_EQ(b_.table->count(), 1);
}

TEST_F(SharedSessionsTest, ALongListComesInParts) {
  for (int i = 0; i < 10; ++i) a_.add(record("s" + std::to_string(i)));
  b_.catalog.changes_max = 4;
  b_.sync();
  EXPECT_EQ(b_.table->count(), 4);
  for (int part = 0; part < 2; ++part) b_.run_due();
  EXPECT_EQ(b_.table->count(), 10);
  EXPECT_GT(b_.next_due(), clock_.now());
}

TEST_F(SharedSessionsTest, NewsAreAskedForAtOnce) {
  b_.sync();
  a_.add(record("s", "diary"));
  b_.run_due();
  EXPECT_EQ(b_.find("diary"), nullptr);
  b_.table->hear_news();
  b_.run_due();
  EXPECT_NE(b_.find("diary"), nullptr);
}

TEST_F(SharedSessionsTest, NewsThatComeDuringAnAnswerAreAskedForBehindIt) {
  b_.catalog.changes_max = 1;
  a_.add(record("s", "diary"));
  a_.add(record("t", "list"));
  b_.begin_sync();
  b_.table->hear_news();
  b_.work();
  b_.run_due();
  EXPECT_EQ(b_.table->count(), 2);
  EXPECT_GT(b_.next_due(), clock_.now());
}

TEST_F(SharedSessionsTest, ASessionThatIsNotListedYetIsFound) {
  a_.add(record("s", "diary"));
  EXPECT_EQ(b_.refusal("diary"), "E_SESSION_002") << "a has it";
  a_.sync();
  EXPECT_EQ(b_.refusal("diary"), "");
  EXPECT_EQ(b_.refusal("nothing"), "E_SESSION_001");
}

TEST_F(SharedSessionsTest, ASessionIsGivenUpWhenItIsIdle) {
  a_.add(record("s"));
  {
    const SessionLock lock = a_.lock("s").value();
    EXPECT_EQ(b_.refusal("s"), "E_SESSION_002");
    a_.sync();
    EXPECT_EQ(b_.refusal("s"), "E_SESSION_002") << "it is locked";
    EXPECT_TRUE(a_.grow(*lock, 3));
  }
  const SessionLock lock = b_.lock("s").value();
  EXPECT_EQ(lock->record->chain.size(), 4u);
  EXPECT_TRUE(b_.grow(*lock, 2));
  EXPECT_EQ(a_.find("s")->record, nullptr) << "its record is no more true";
}

TEST_F(SharedSessionsTest, ASessionIsGivenUpThoughRequestsWaitForItHere) {
  a_.add(record("s"));
  b_.sync();
  auto lock = std::make_optional(a_.lock("s").value());
  EXPECT_EQ(b_.refusal("s"), "E_SESSION_002");
  a_.sync();
  std::vector<std::string> served;
  for (int i = 0; i < 2; ++i) {
    a_.start(a_.table->lock(kTenant, "s"), [&](const Expected<SessionLock>& granted) {
      served.push_back(granted ? "" : std::string(code_name(granted.error().code)));
    });
  }
  a_.table->begin_run(**lock, RequestId{1});
  Session& session = **lock;
  lock.reset();
  a_.work();
  EXPECT_EQ(served, (std::vector<std::string>{"", ""})) << "a reply is in progress, so the session stays";
  served.clear();
  lock.emplace(a_.lock("s").value());
  a_.start(a_.table->lock(kTenant, "s"), [&](const Expected<SessionLock>& granted) {
    served.push_back(granted ? "" : std::string(code_name(granted.error().code)));
  });
  a_.table->end_run(session);
  a_.work();
  EXPECT_TRUE(served.empty());
  lock.reset();
  a_.work();
  EXPECT_EQ(served, std::vector<std::string>{"E_SESSION_002"}) << "it is b's turn, for which a would wait";
  EXPECT_EQ(b_.refusal("s"), "");
}

TEST_F(SharedSessionsTest, ASessionComesBackAsTheOtherHasLeftIt) {
  a_.add(record("s"));
  EXPECT_EQ(b_.refusal("s"), "E_SESSION_002");
  a_.sync();
  {
    const SessionLock lock = b_.lock("s").value();
    EXPECT_TRUE(b_.grow(*lock, 10));
  }
  EXPECT_EQ(a_.refusal("s"), "E_SESSION_002");
  b_.sync();
  const SessionLock lock = a_.lock("s").value();
  EXPECT_EQ(lock->record->chain.size(), 11u);
  EXPECT_EQ(lock->summary.tokens_count, 11);
}

TEST_F(SharedSessionsTest, AnOwnerAsksNobody) {
  a_.add(record("s"));
  for (int i = 0; i < 5; ++i) {
    const SessionLock lock = a_.lock("s").value();
    EXPECT_TRUE(a_.grow(*lock, 1));
  }
  EXPECT_EQ(a_.catalog.takings, 0);
}

TEST_F(SharedSessionsTest, WhatIsNotUsedIsGivenUp) {
  a_.add(record("s"));
  a_.sync();
  EXPECT_EQ(a_.find("s")->lease, 1u);
  clock_.advance(seconds(61));
  a_.sync();
  EXPECT_EQ(a_.find("s")->lease, 0u);
  EXPECT_EQ(shared_.entries.at(SessionId{"s"}).owner, 0);
}

TEST_F(SharedSessionsTest, AnOwnerThatLostTheSessionStoresNothing) {
  a_.add(record("s"));
  const SessionLock lock = a_.lock("s").value();
  // Its lease has ended, and b takes the session.
  shared_.entries.at(SessionId{"s"}).owner = 0;
  {
    const SessionLock taken = b_.lock("s").value();
    EXPECT_TRUE(b_.grow(*taken, 5));
  }
  const auto refused = a_.grow(*lock, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::limit_wait);
  EXPECT_EQ(lock->lease, 0u);
  EXPECT_EQ(shared_.entries.at(SessionId{"s"}).record->chain.size(), 6u);
}

// A machine whose clock stood still believes in its lease. The record of the session is not in its memory.
TEST_F(SharedSessionsTest, ARecordThatIsReadAnewIsThatOfTheSummary) {
  Node c(shared_, 3, clock_, {}, false, 0);
  c.add(record("s", "one"));
  testing::SharedSessions::Entry& entry = shared_.entries.at(SessionId{"s"});
  kv::SessionRecord renamed = *entry.record;
  renamed.name = "two";
  entry.record = std::make_shared<const kv::SessionRecord>(renamed);
  entry.owner = 0;
  entry.fence += 2;
  const SessionLock lock = c.lock("s").value();
  EXPECT_EQ(lock->summary.name, "two");
  c.table->check_invariants();
  EXPECT_TRUE(c.grow(*lock, 1));
}

// A reply that began before another daemon continued the session must not be appended behind what that one wrote.
TEST_F(SharedSessionsTest, AReplyEndsWithAnErrorIfTheSessionWasContinuedElsewhere) {
  a_.add(record("s"));
  {
    const SessionLock lock = a_.lock("s").value();
    a_.table->begin_run(*lock, RequestId{1});
  }
  shared_.entries.at(SessionId{"s"}).owner = 0;
  {
    const SessionLock taken = b_.lock("s").value();
    EXPECT_TRUE(b_.grow(*taken, 5));
  }
  b_.catalog.give_up(SessionId{"s"});
  a_.sync();
  {
    const SessionLock lock = a_.lock("s").value();
    EXPECT_EQ(lock->record->chain.size(), 6u);
    const auto refused = a_.grow(*lock, 1);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::limit_wait);
    a_.table->end_run(*lock);
    EXPECT_TRUE(a_.grow(*lock, 1)) << "a request behind it";
  }
}

TEST_F(SharedSessionsTest, WithoutTheDatabaseASessionIsNotUsed) {
  a_.add(record("s"));
  a_.catalog.is_cut_off = true;
  a_.catalog.has_lease = false;
  EXPECT_EQ(a_.refusal("s"), "E_IO_001");
  a_.sync();
  EXPECT_NE(a_.find("s"), nullptr) << "it stays listed";
  a_.catalog.is_cut_off = false;
  EXPECT_EQ(a_.refusal("s"), "");
}

TEST_F(SharedSessionsTest, AnEndIsEverybodys) {
  a_.add(record("s", "diary"));
  b_.sync();
  EXPECT_EQ(b_.refusal("s"), "E_SESSION_002");
  a_.sync();
  bool has_ended = false;
  EXPECT_EQ(b_.refusal("s"), "");
  b_.table->end(*b_.find("s"), [&](const Expected<Unit>& done) { has_ended = done.has_value(); });
  b_.work();
  EXPECT_TRUE(has_ended);
  EXPECT_EQ(a_.refusal("s"), "E_SESSION_001") << "found out by asking";
  EXPECT_EQ(a_.ended, std::vector<std::string>{"s"});
  a_.add(record("t", "diary"));
  b_.sync();
  EXPECT_EQ(b_.find("diary")->summary.id.value, "t");
}

TEST_F(SharedSessionsTest, AnEndThatWasHeardOfRemovesTheSession) {
  a_.add(record("s", "diary"));
  b_.sync();
  a_.table->end(*a_.find("s"), [](const Expected<Unit>&) {});
  a_.work();
  b_.sync();
  EXPECT_EQ(b_.find("diary"), nullptr);
  EXPECT_EQ(b_.table->count(), 0);
}

TEST_F(SharedSessionsTest, WhatTheDatabaseHasLostInATakeoverIsGone) {
  a_.add(record("s", "one"));
  a_.add(record("t", "two"));
  const SessionLock lock = a_.lock("t").value();
  shared_.entries.clear();
  a_.catalog.is_reconnected = true;
  a_.sync();
  EXPECT_EQ(a_.find("s"), nullptr) << "though it was a's own";
  EXPECT_EQ(a_.find("t")->lease, 0u) << "it is in use, and ends when it is next taken";
}

TEST_F(SharedSessionsTest, NamesThatChangeHandsAreFollowed) {
  a_.add(record("s", "one"));
  b_.sync();
  {
    const SessionLock lock = a_.lock("s").value();
    kv::SessionRecord renamed = *lock->record;
    renamed.name = "two";
    EXPECT_TRUE(a_.result_of(a_.table->commit(*lock, std::move(renamed))));
  }
  a_.add(record("t", "one"));
  b_.sync();
  EXPECT_EQ(b_.find("two")->summary.id.value, "s");
  EXPECT_EQ(b_.find("one")->summary.id.value, "t");
}

TEST_F(SharedSessionsTest, ANameThatComesBackIsFound) {
  const auto rename = [this](const std::string& id, const std::string& name) {
    const SessionLock lock = a_.lock(id).value();
    kv::SessionRecord renamed = *lock->record;
    renamed.name = name;
    EXPECT_TRUE(a_.result_of(a_.table->commit(*lock, std::move(renamed))));
  };
  a_.add(record("s", "one"));
  b_.sync();
  rename("s", "two");
  a_.add(record("t", "one"));
  ASSERT_TRUE(b_.result_of(b_.table->learn(kTenant, "one")));
  EXPECT_EQ(b_.find("one")->summary.id.value, "t");
  rename("t", "three");
  rename("s", "one");
  b_.sync();
  ASSERT_NE(b_.find("one"), nullptr);
  EXPECT_EQ(b_.find("one")->summary.id.value, "s");
  EXPECT_EQ(b_.find("three")->summary.id.value, "t");
}

TEST_F(SharedSessionsTest, ANameOfASessionInUseIsFound) {
  a_.add(record("s"));
  b_.sync();
  clock_.advance(seconds(61));
  a_.sync();
  std::optional<Expected<Unit>> learnt;
  {
    const SessionLock lock = b_.lock("s").value();
    // b's lease has ended, and a renames the session meanwhile.
    shared_.entries.at(SessionId{"s"}).owner = 0;
    {
      const SessionLock taken = a_.lock("s").value();
      kv::SessionRecord renamed = *taken->record;
      renamed.name = "one";
      EXPECT_TRUE(a_.result_of(a_.table->commit(*taken, std::move(renamed))));
    }
    a_.catalog.give_up(SessionId{"s"});
    b_.begin(learnt, b_.table->learn(kTenant, "one"));
    b_.work();
  }
  b_.work();
  ASSERT_TRUE(learnt.has_value() && learnt->has_value());
  ASSERT_NE(b_.find("one"), nullptr);
  EXPECT_EQ(b_.find("one")->summary.id.value, "s");
}

// b has not heard of the change yet.
TEST_F(SharedSessionsTest, ANameCountsAtOnce) {
  a_.add(record("s", "one"));
  b_.sync();
  {
    const SessionLock lock = a_.lock("s").value();
    kv::SessionRecord renamed = *lock->record;
    renamed.name = "two";
    EXPECT_TRUE(a_.result_of(a_.table->commit(*lock, std::move(renamed))));
  }
  EXPECT_EQ(b_.refusal("one"), "E_SESSION_001") << "it is called two now";
  a_.add(record("t", "one"));
  EXPECT_EQ(b_.refusal("one"), "E_SESSION_002") << "a has it";
  clock_.advance(seconds(61));
  a_.sync();
  const SessionLock lock = b_.lock("one").value();
  EXPECT_EQ(lock->summary.id.value, "t");
  ASSERT_TRUE(b_.result_of(b_.table->learn(kTenant, "two")));
  EXPECT_EQ(b_.find("two")->summary.id.value, "s");
}

TEST_F(SharedSessionsTest, WhoWaitsForASessionThatIsRenamedGetsWhatHasTheNameThen) {
  a_.add(record("s", "one"));
  std::optional<Expected<SessionLock>> waited;
  {
    const SessionLock lock = a_.lock("s").value();
    a_.begin(waited, a_.table->lock(kTenant, "one"));
    kv::SessionRecord renamed = *lock->record;
    renamed.name = "two";
    EXPECT_TRUE(a_.result_of(a_.table->commit(*lock, std::move(renamed))));
    EXPECT_FALSE(waited);
  }
  a_.work();
  ASSERT_TRUE(waited);
  ASSERT_FALSE(*waited);
  EXPECT_EQ(waited->error().code, ErrorCode::session_unknown);
}

// A request waits for a session that is being stored. If that fails, the name may be another daemon's session's.
TEST_F(SharedSessionsTest, ASessionThatWasNotStoredSaysNothingAboutItsName) {
  const auto waits_for_a_failed_one = [this](const std::string& session) {
    std::optional<Expected<SessionLock>> waited;
    {
      const SessionLock lock = a_.table->add(record("t", "diary"), 0);
      a_.begin(waited, a_.table->lock(kTenant, session));
      EXPECT_FALSE(a_.result_of(a_.table->commit(*lock, lock->record)));
      EXPECT_FALSE(waited);
    }
    a_.work();
    if (!waited) return std::string("no answer");
    return std::string(*waited ? (**waited)->summary.id.value : code_name(waited->error().code));
  };
  b_.add(record("s", "diary"));
  EXPECT_EQ(waits_for_a_failed_one("diary"), "E_SESSION_002") << "b has it";
  EXPECT_EQ(waits_for_a_failed_one("t"), "E_SESSION_001") << "there is none";
  a_.catalog.is_cut_off = true;
  EXPECT_EQ(waits_for_a_failed_one("diary"), "E_IO_001") << "a cannot know";
}

TEST_F(SharedSessionsTest, ATimeToLiveBeginsAgainWithEveryDaemonsUse) {
  a_.add(record("s", "", 60));
  b_.sync();
  clock_.advance(seconds(40));
  {
    const SessionLock lock = a_.lock("s").value();
    kv::SessionRecord used = *lock->record;
    used.last_used_s = clock_.unix_s();
    EXPECT_TRUE(a_.result_of(a_.table->commit(*lock, std::move(used))));
    a_.table->touch(*lock);
  }
  clock_.advance(seconds(25));  // For b its time is over, as far as it knows.
  b_.run_due();
  EXPECT_TRUE(shared_.entries.contains(SessionId{"s"}));
  a_.sync();
  b_.run_due();
  EXPECT_TRUE(shared_.entries.contains(SessionId{"s"}));
  clock_.advance(seconds(90));
  b_.sync();
  a_.run_due();
  b_.run_due();
  EXPECT_FALSE(shared_.entries.contains(SessionId{"s"}));
}

TEST_F(SharedSessionsTest, ASessionThatWasDeletedElsewhereIsNotStoredAgain) {
  a_.add(record("s"));
  {
    const SessionLock lock = a_.lock("s").value();
    a_.table->begin_run(*lock, RequestId{1});
  }
  a_.catalog.end_lease();
  b_.sync();
  b_.table->end(*b_.find("s"), [](const Expected<Unit>&) {});
  b_.work();
  ASSERT_TRUE(shared_.entries.empty());
  EXPECT_EQ(a_.refusal("s"), "E_SESSION_001");
  EXPECT_EQ(a_.refusal("s"), "E_SESSION_001") << "while its reply goes on";
  a_.table->end_run(*a_.find("s"));
  a_.work();
  EXPECT_TRUE(shared_.entries.empty());
  EXPECT_EQ(a_.find("s"), nullptr);
}

// A session may have the id of another one as its name.
TEST_F(SharedSessionsTest, ASessionIsTakenByItsIdAlone) {
  a_.add(record("s"));
  b_.sync();
  b_.add(record("t", "s"));
  EXPECT_EQ(b_.refusal("s"), "") << "the name comes first";
  clock_.advance(seconds(61));
  a_.sync();
  const SessionLock lock = a_.result_of(a_.table->lock(*a_.table->find(SessionId{"s"}))).value();
  EXPECT_EQ(lock->record->id.value, "s");
}

TEST_F(SharedSessionsTest, WhoeverWaitsBehindARefusedRequestIsRefused) {
  a_.add(record("s"));
  b_.sync();
  const SessionLock lock = a_.lock("s").value();
  EXPECT_EQ(b_.refusal("s"), "E_SESSION_002");
  EXPECT_EQ(b_.refusal("s"), "E_SESSION_002");
}

// --- With a store of states that daemons share

class SharedStatesOfSessions : public SharedSessionsTest {
 protected:
  using Events = std::vector<std::string>;
  Events events() { return std::exchange(c_.events, {}); }

  Node c_{shared_, 3, clock_, {}, true};
};

TEST_F(SharedStatesOfSessions, AStateIsStoredBeforeItsSessionIsGivenUp) {
  c_.add(record("s"));
  EXPECT_EQ(b_.refusal("s"), "E_SESSION_002");
  c_.sync();
  EXPECT_EQ(events(), Events{"wanted s"});
  EXPECT_EQ(b_.refusal("s"), "E_SESSION_002") << "its state is on the way";
  c_.end_publishing();
  EXPECT_EQ(events(), Events{"given up s"});
  EXPECT_EQ(b_.refusal("s"), "");
}

TEST_F(SharedStatesOfSessions, ASessionIsGivenUpThoughRequestsWaitForItHere) {
  c_.add(record("s"));
  auto lock = std::make_optional(c_.lock("s").value());
  EXPECT_EQ(b_.refusal("s"), "E_SESSION_002");
  c_.sync();
  std::vector<std::string> served;
  const auto ask = [&] {
    c_.start(c_.table->lock(kTenant, "s"), [&](const Expected<SessionLock>& granted) {
      served.push_back(granted ? "" : std::string(code_name(granted.error().code)));
    });
  };
  ask();
  EXPECT_EQ(events(), Events{});
  lock.reset();
  c_.work();
  EXPECT_EQ(events(), Events{"wanted s"});
  ask();
  EXPECT_TRUE(served.empty()) << "the state is being stored";
  c_.end_publishing();
  EXPECT_EQ(events(), Events{"given up s"});
  EXPECT_EQ(served.size(), 2u);
  EXPECT_EQ(served.front(), "E_SESSION_002") << "it is b's turn";
}

TEST_F(SharedStatesOfSessions, TheStatesOfIdleSessionsAreStoredOneAfterAnother) {
  c_.add(record("s"));
  c_.add(record("t"));
  c_.sync();
  EXPECT_EQ(events(), Events{}) << "they may go on at once";
  clock_.advance(seconds(5));
  c_.sync();
  EXPECT_EQ(events(), Events{"idle s"});
  c_.sync();
  EXPECT_EQ(events(), Events{});
  c_.end_publishing();
  EXPECT_EQ(events(), Events{"idle t"});
  c_.end_publishing();
  c_.sync();
  EXPECT_EQ(events(), Events{}) << "once is enough";
  EXPECT_EQ(c_.refusal("s"), "") << "no lock is needed for it";
}

TEST_F(SharedStatesOfSessions, WhatWasStoredIsGivenUpAtOnce) {
  c_.add(record("s"));
  clock_.advance(seconds(5));
  c_.sync();
  c_.end_publishing();
  EXPECT_EQ(b_.refusal("s"), "E_SESSION_002");
  c_.sync();
  EXPECT_EQ(events(), (Events{"idle s", "given up s"}));
  EXPECT_EQ(b_.refusal("s"), "");
}

TEST_F(SharedStatesOfSessions, AStateThatIsBeingStoredIsWaitedFor) {
  c_.add(record("s"));
  clock_.advance(seconds(5));
  c_.sync();
  EXPECT_EQ(events(), Events{"idle s"});
  EXPECT_EQ(b_.refusal("s"), "E_SESSION_002");
  c_.sync();
  EXPECT_EQ(events(), Events{"wanted s"});
  EXPECT_EQ(b_.refusal("s"), "E_SESSION_002") << "its state is on the way";
  c_.end_publishing();
  EXPECT_EQ(events(), Events{"given up s"});
  EXPECT_EQ(b_.refusal("s"), "");
}

TEST_F(SharedStatesOfSessions, AStateThatWasChangedWhileItWasStoredIsStoredAgain) {
  c_.add(record("s"));
  clock_.advance(seconds(5));
  c_.sync();
  EXPECT_TRUE(c_.grow(**c_.lock("s"), 3));
  c_.end_publishing();
  clock_.advance(seconds(5));
  c_.sync();
  EXPECT_EQ(events(), (Events{"idle s", "idle s"}));
}

// A request to take it may reach the database after its answer was given up.
TEST_F(SharedStatesOfSessions, ASessionThatIsOwnedUnknowinglyIsGivenUpAndGoesOn) {
  a_.add(record("s"));
  a_.run_due();
  c_.sync();
  a_.catalog.give_up(SessionId{"s"});
  auto& entry = shared_.entries.at(SessionId{"s"});
  entry.owner = 3;
  ++entry.fence;
  EXPECT_EQ(b_.refusal("s"), "E_SESSION_002");
  c_.sync();
  EXPECT_EQ(events(), Events{"given up s"}) << "there is no state to store";
  EXPECT_EQ(b_.refusal("s"), "");
  // The one that has it meanwhile stores nothing more, and takes it again.
  EXPECT_TRUE(b_.grow(**b_.lock("s"), 1));
  ++entry.fence;
  EXPECT_FALSE(b_.grow(**b_.lock("s"), 1));
  EXPECT_TRUE(b_.grow(**b_.lock("s"), 1));
  EXPECT_EQ(entry.record->chain.size(), 3U);
}

TEST_F(SharedStatesOfSessions, ASessionWhoseRecordHasLeftTheMemoryGoesTheSameWay) {
  Node small(shared_, 4, clock_, {}, true, 0);
  small.add(record("s"));
  ASSERT_EQ(small.find("s")->record, nullptr);
  small.sync();
  EXPECT_EQ(b_.refusal("s"), "E_SESSION_002");
  small.sync();
  small.end_publishing();
  EXPECT_EQ(std::exchange(small.events, {}), (Events{"wanted s", "given up s"}));
  EXPECT_EQ(b_.refusal("s"), "");
  small.add(record("t"));
  clock_.advance(seconds(6));
  small.sync();
  EXPECT_EQ(small.events, Events{"idle t"});
  small.end_publishing();
}

TEST_F(SharedStatesOfSessions, AChangeMakesAStateOld) {
  c_.add(record("s"));
  clock_.advance(seconds(5));
  c_.sync();
  c_.end_publishing();
  EXPECT_TRUE(c_.grow(**c_.lock("s"), 3));
  clock_.advance(seconds(5));
  c_.sync();
  EXPECT_EQ(events(), (Events{"idle s", "idle s"}));
}

TEST_F(SharedStatesOfSessions, ASessionThatWasTakenIsSaid) {
  a_.add(record("s"));
  EXPECT_EQ(c_.refusal("s"), "E_SESSION_002");
  a_.sync();
  EXPECT_EQ(c_.refusal("s"), "");
  EXPECT_EQ(c_.refusal("s"), "");
  EXPECT_EQ(events(), Events{"taken s"});
}

TEST_F(SharedStatesOfSessions, ASessionMayEndWhileItsStateIsStored) {
  c_.add(record("s"));
  clock_.advance(seconds(5));
  c_.sync();
  c_.table->end(*c_.find("s"), [](const Expected<Unit>&) {});
  c_.work();
  c_.end_publishing();
  c_.sync();
  EXPECT_EQ(c_.ended, std::vector<std::string>{"s"});
}

// Random daemons, locks that are held for a while, commits, lost leases and cuts: the chain of each session has every
// acknowledged growth once.
TEST_F(SharedSessionsTest, WhateverHappensNoAcknowledgedChangeIsLost) {
  std::size_t grown = 0;
  std::size_t refused = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    testing::SharedSessions shared;
    std::array<Node, 3> nodes{Node{shared, 1, clock_}, Node{shared, 2, clock_}, Node{shared, 3, clock_}};
    std::vector<std::size_t> expected;
    for (int i = 0; i < 4; ++i) {
      nodes[random.next_below(3)].add(record("s" + std::to_string(i), "name" + std::to_string(i)));
      expected.push_back(1);
    }
    struct Held {
      Node* node;
      std::size_t which;
      SessionLock lock;
    };
    std::vector<Held> held;
    for (int action = 0; action < 300; ++action) {
      Node& node = nodes[random.next_below(3)];
      const std::size_t which = random.next_below(4);
      const SessionId id{"s" + std::to_string(which)};
      switch (random.next_below(8)) {
        case 0:
          node.sync();
          break;
        case 1:
          node.catalog.is_cut_off = random.next_below(3) == 0;
          break;
        case 2:
          node.catalog.end_lease();
          break;
        case 3:
          clock_.advance(seconds(static_cast<std::int64_t>(random.next_below(40))));
          break;
        case 4:
        case 5: {
          const bool is_held =
              std::ranges::any_of(held, [&](const Held& each) { return each.node == &node && each.which == which; });
          if (is_held) break;  // A second request would wait for the first.
          auto lock = node.lock(random.next_below(2) == 0 ? id.value : "name" + std::to_string(which));
          if (!lock) break;
          EXPECT_EQ((*lock)->record->chain.size(), expected[which]);
          held.push_back({&node, which, std::move(*lock)});
          break;
        }
        default: {
          if (held.empty()) break;
          const auto picked = held.begin() + static_cast<std::ptrdiff_t>(random.next_below(held.size()));
          const std::size_t tokens = 1 + random.next_below(5);
          if (picked->node->grow(*picked->lock, tokens)) {
            expected[picked->which] += tokens;
            ++grown;
          } else {
            ++refused;
          }
          if (random.next_below(2) == 0) held.erase(picked);
        }
      }
    }
    held.clear();
    for (std::size_t which = 0; which < expected.size(); ++which) {
      EXPECT_EQ(shared.entries.at(SessionId{"s" + std::to_string(which)}).record->chain.size(), expected[which]);
    }
  }
  EXPECT_GT(grown, 1000u);
  EXPECT_GT(refused, 1000u);
}

}  // namespace
}  // namespace uma::engine
