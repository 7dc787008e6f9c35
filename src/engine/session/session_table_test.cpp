#include "engine/session/session_table.h"

#include <new>
#include <optional>

#include <gtest/gtest.h>

#include "base/move_only_function.h"
#include "base/random.h"
#include "engine/engine_test_support.h"
#include "testing/sim_clock.h"

namespace uma::engine {
namespace {

class SessionTableTest : public ::testing::Test {
 protected:
  SessionTableTest() { init_log(LogLevel::error); }

  void make(Limits limits = {}, std::size_t record_bytes_max = 1 << 20) {
    SessionTableOptions options;
    options.limits = limits;
    options.record_bytes_max = record_bytes_max;
    options.random = [this] { return random_.next_u64(); };
    options.on_committed = [](const kv::SessionRecord&) {};
    options.on_ended = [this](const Session& session) { ended_.push_back(session.summary.id.value); };
    table_.emplace(std::move(options), catalog_, tasks_, clock_);
  }
  // Delivers the replies of the catalog to the table.
  void work() {
    while (!posted_.empty()) {
      std::vector<MoveOnlyFunction<void()>> now = std::exchange(posted_, {});
      for (auto& command : now) command();
      table_->check_invariants();
    }
  }
  // Runs a task to its end and returns its result.
  template <class T>
  Expected<T> result_of(Task<Expected<T>> task) {
    std::optional<Expected<T>> result;
    tasks_.answer([&](Expected<T> got) { result.emplace(std::move(got)); }, std::move(task));
    work();
    return std::move(result).value();
  }
  static kv::SessionRecord record(const std::string& id, std::size_t tokens = 0) {
    kv::SessionRecord made;
    made.id = SessionId{id};
    made.tenant = kTenant;
    made.chain.assign(tokens, 1);
    if (tokens == 0) return made;
    made.mode = SessionMode::text;
    made.turns = {{.tokens_begin = 0, .reply_begin = 1, .messages_begin = 0}};
    return made;
  }
  // Adds and commits a session.
  void add(kv::SessionRecord made) {
    const SessionLock lock = table_->add(std::move(made), 0);
    EXPECT_TRUE(result_of(table_->commit(*lock, lock->record)));
  }
  Session& session(const std::string& id) { return *table_->find(SessionId{id}); }
  SessionLock lock(const std::string& id) { return result_of(table_->lock(kTenant, id)).value(); }
  Task<Expected<Unit>> end_of(std::string id) {
    co_return co_await tasks_.ask<Unit>([&](Promise<Unit> reply) { table_->end(session(id), std::move(reply)); });
  }
  // Requests a lock, and appends to `log`: `name` when it is granted, "-" when it is refused.
  void lock_later(const std::string& id, std::string& log, char name) {
    tasks_.answer([&log, name](const Expected<SessionLock>& got) { log += got ? name : '-'; }, table_->lock(kTenant, id));
  }

  Random random_{1};
  std::vector<MoveOnlyFunction<void()>> posted_;
  testing::SimClock clock_;
  TaskRunner tasks_{[this](MoveOnlyFunction<void()> command) { posted_.push_back(std::move(command)); }, clock_};
  testing::FakeCatalog catalog_;
  std::optional<SessionTable> table_;
  std::vector<std::string> ended_;
};

TEST_F(SessionTableTest, ASessionIsFoundByItsIdAndItsNameByItsOwnTenantOnly) {
  make();
  kv::SessionRecord named = record("one");
  named.name = "notes";
  add(std::move(named));
  EXPECT_NE(table_->find(kTenant, "one"), nullptr);
  EXPECT_EQ(table_->find(kTenant, "notes"), table_->find(SessionId{"one"}));
  EXPECT_EQ(table_->find(TenantId{"b"}, "one"), nullptr);
  EXPECT_EQ(table_->find(TenantId{"b"}, "notes"), nullptr);
  const auto none = result_of(table_->lock(kTenant, "two"));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::session_unknown);
}

TEST_F(SessionTableTest, ANameIsTakenWhileItIsStoredAndFreeAgainIfItCannotBe) {
  make();
  kv::SessionRecord named = record("one");
  named.name = "notes";
  add(std::move(named));
  const SessionLock held = lock("one");
  kv::SessionRecord next = *held->record;
  next.name = "diary";
  catalog_.is_full = true;
  EXPECT_FALSE(result_of(table_->commit(*held, next)));
  EXPECT_EQ(table_->find(kTenant, "diary"), nullptr);
  EXPECT_EQ(table_->find(kTenant, "notes"), &session("one"));
  catalog_.is_full = false;
  std::optional<Expected<Unit>> done;
  tasks_.answer([&](Expected<Unit> got) { done = std::move(got); }, table_->commit(*held, next));
  EXPECT_EQ(table_->find(kTenant, "diary"), &session("one"));
  EXPECT_EQ(table_->find(kTenant, "notes"), &session("one")) << "until the change is stored";
  work();
  ASSERT_TRUE(done && *done);
  EXPECT_EQ(table_->find(kTenant, "notes"), nullptr);
  next.name.clear();
  ASSERT_TRUE(result_of(table_->commit(*held, next)));
  EXPECT_EQ(table_->find(kTenant, "diary"), nullptr);
}

TEST_F(SessionTableTest, WhatComesToALockedSessionWaitsInItsOrder) {
  make();
  add(record("s"));
  SessionLock held = lock("s");
  std::string order;
  for (const char name : {'a', 'b', 'c'}) lock_later("s", order, name);
  work();
  EXPECT_EQ(order, "");
  held.release();
  work();
  EXPECT_EQ(order, "abc");
  EXPECT_FALSE(session("s").is_locked);
}

TEST_F(SessionTableTest, WhoGivesUpHoldsUpNobodyWhoWaitsBehind) {
  make();
  add(record("s"));
  SessionLock held = lock("s");
  std::string order;
  const auto take = [&](char name) -> Task<> {
    if (const auto got = co_await table_->lock(kTenant, "s")) order += name;
  };
  const std::uint64_t gives_up = tasks_.start(take('a'));
  const std::uint64_t gives_up_late = tasks_.start(take('b'));
  tasks_.start(take('c'));
  tasks_.end(gives_up);
  held.release();  // The lock is also offered to requests that have stopped waiting.
  tasks_.end(gives_up_late);
  work();
  EXPECT_EQ(order, "c");
  EXPECT_FALSE(session("s").is_locked);
}

TEST_F(SessionTableTest, WaitsForTheReplyThatIsBeingMade) {
  make();
  add(record("s"));
  table_->begin_run(session("s"), RequestId{1});
  std::string order;
  tasks_.answer([&](const Expected<SessionLock>& got) { order += got ? 'a' : '-'; }, table_->lock_idle(kTenant, "s"));
  lock_later("s", order, 'b');
  work();
  EXPECT_EQ(order, "b") << "its record can be read meanwhile";
  table_->end_run(session("s"));
  work();
  EXPECT_EQ(order, "ba");
  table_->begin_run(session("s"), RequestId{2});
  for (int i = 0; i < 65; ++i)
    tasks_.answer([&](const Expected<Unit>& got) { order += got ? '+' : '-'; }, table_->until_idle(session("s")));
  work();
  EXPECT_EQ(order, "ba-") << "so many may wait";
  table_->end_run(session("s"));
  work();
  EXPECT_EQ(order, "ba-" + std::string(64, '+'));
}

TEST_F(SessionTableTest, RecordsNobodyUsesLeaveMemoryAndAreReadAgain) {
  const std::size_t one = kv::bytes_of(record("s0", 100));
  make({}, 2 * one + one / 2);
  for (int i = 0; i < 3; ++i) add(record("s" + std::to_string(i), 100));
  EXPECT_EQ(table_->find(SessionId{"s0"})->record, nullptr);
  EXPECT_NE(table_->find(SessionId{"s1"})->record, nullptr);
  EXPECT_EQ(catalog_.readings, 0);
  EXPECT_EQ(lock("s0")->record->chain.size(), 100u);
  EXPECT_EQ(catalog_.readings, 1);
  EXPECT_EQ(table_->find(SessionId{"s1"})->record, nullptr);
  // A running session stays, however long ago it was used.
  table_->begin_run(*table_->find(SessionId{"s0"}), RequestId{1});
  (void)lock("s1");
  (void)lock("s2");
  EXPECT_NE(table_->find(SessionId{"s0"})->record, nullptr);
  table_->end_run(*table_->find(SessionId{"s0"}));
  table_->check_invariants();
}

TEST_F(SessionTableTest, QuotasCountWhatIsBeingCommittedAndTakeItBackWhereThatFails) {
  Limits limits;
  limits.max_sessions = 3;
  limits.tenant_sessions_max = 2;
  limits.tenant_tokens_max = 100;
  make(limits);
  add(record("s", 60));
  EXPECT_TRUE(table_->check_quota(kTenant, {.sessions = 1, .tokens = 40}));
  EXPECT_EQ(table_->check_quota(kTenant, {.sessions = 1, .tokens = 41}).error().code, ErrorCode::limit_quota);
  EXPECT_TRUE(table_->check_quota(TenantId{"b"}, {.sessions = 1, .tokens = 100}));

  {
    const SessionLock held = lock("s");
    catalog_.is_full = true;
    std::optional<Expected<Unit>> done;
    tasks_.answer([&](Expected<Unit> got) { done.emplace(std::move(got)); }, table_->commit(*held, record("s", 90)));
    EXPECT_FALSE(table_->check_quota(kTenant, {.tokens = 11}));
    work();
    EXPECT_FALSE(done.value());
    EXPECT_EQ(held->record->chain.size(), 60u);
    EXPECT_TRUE(table_->check_quota(kTenant, {.tokens = 40}));
  }
  catalog_.is_full = false;

  add(record("t"));
  EXPECT_EQ(table_->check_quota(kTenant, {.sessions = 1}).error().code, ErrorCode::limit_quota);
  // A session that a response has made counts before it is in the catalog, but not after it is discarded.
  kv::SessionRecord other = record("o");
  other.tenant = TenantId{"b"};
  SessionLock made = table_->add(std::move(other), 0);
  table_->begin_run(*made, RequestId{1});
  Session& begun = *made;
  made.release();
  EXPECT_EQ(table_->check_quota(TenantId{"c"}, {.sessions = 1}).error().code, ErrorCode::limit_sessions);
  table_->end_run(begun);
  EXPECT_TRUE(table_->check_quota(TenantId{"c"}, {.sessions = 1}));
  EXPECT_EQ(table_->count(), 2);
  table_->check_invariants();
}

TEST_F(SessionTableTest, TheLastSessionsAreForTenantsWithFew) {
  make({.max_sessions = 32});
  for (int i = 0; i < 30; ++i) add(record(std::to_string(i)));
  EXPECT_EQ(table_->check_quota(kTenant, {.sessions = 1}).error().code, ErrorCode::limit_sessions);
  EXPECT_TRUE(table_->check_quota(kTenant, {.tokens = 1, .bytes = 4})) << "what it has may grow";
  EXPECT_TRUE(table_->check_quota(TenantId{"b"}, {.sessions = 1}));
  EXPECT_EQ(table_->check_quota(TenantId{"b"}, {.sessions = 3}).error().code, ErrorCode::limit_sessions);
}

TEST_F(SessionTableTest, TextsCountAlthoughTheyHaveNoTokens) {
  make({.tenant_bytes_max = 1000});
  kv::SessionRecord made = record("s");
  made.mode = SessionMode::chat;
  made.pending_messages = {{.role = "user", .content = std::string(900, 'a')}};
  made.pending = {1, 2};
  const Stored first = stored_of(made);
  EXPECT_EQ(first.bytes, 900 + 4 + 2 * sizeof(Token));
  add(made);
  EXPECT_TRUE(table_->check_quota(kTenant, {.bytes = 1000 - first.bytes}));
  const auto refused = table_->check_quota(kTenant, {.bytes = 1001 - first.bytes});
  EXPECT_EQ(refused.error().code, ErrorCode::limit_quota);
  EXPECT_NE(refused.error().message.find("limits.tenant_bytes_max"), std::string::npos) << refused.error().message;
  EXPECT_TRUE(table_->check_quota(TenantId{"b"}, {.sessions = 1, .bytes = 1000}));
  EXPECT_TRUE(result_of(end_of("s")));
  EXPECT_TRUE(table_->check_quota(kTenant, {.bytes = 1000}));
  EXPECT_EQ(table_->bytes_stored(), 0);
}

TEST_F(SessionTableTest, OnANearlyFullDiskWhoHasFilledItIsRefused) {
  make();
  const TenantId modest{"modest"};
  add(record("large", 20'000'000));
  kv::SessionRecord small = record("small", 10);
  small.tenant = modest;
  add(small);
  EXPECT_TRUE(table_->check_quota(kTenant, {.bytes = 1}));
  catalog_.has_little_room = true;
  EXPECT_EQ(table_->check_quota(kTenant, {.bytes = 1}).error().code, ErrorCode::limit_quota);
  EXPECT_TRUE(table_->check_quota(kTenant, {})) << "what adds nothing goes on";
  EXPECT_TRUE(table_->check_quota(modest, {.sessions = 1, .bytes = 5000}));
  EXPECT_TRUE(table_->check_quota(TenantId{"new"}, {.sessions = 1, .bytes = 5000}));
}

TEST_F(SessionTableTest, ASessionEndsWhenNothingOfItIsUnderWayAndTheCatalogHasForgottenIt) {
  make();
  add(record("s"));
  table_->begin_run(session("s"), RequestId{1});
  std::string answers;
  const auto answer = [&](const Expected<Unit>& done) { answers += done ? '+' : '-'; };
  table_->end(session("s"), answer);
  work();
  EXPECT_EQ(answers, "") << "a reply is being made";
  catalog_.is_full = true;
  table_->end_run(session("s"));
  work();
  EXPECT_EQ(answers, "-");
  EXPECT_EQ(lock("s")->summary.id.value, "s") << "it is as it was";

  catalog_.is_full = false;
  table_->end(session("s"), answer);
  lock_later("s", answers, 's');
  work();
  EXPECT_EQ(answers, "-+-") << "what came while the session ended is refused";
  EXPECT_EQ(ended_, (std::vector<std::string>{"s"}));
  EXPECT_EQ(table_->size(), 0u);
}

TEST_F(SessionTableTest, AnEndThatThrowsIsAnsweredAndNotTriedAgain) {
  make();
  add(record("s"));
  catalog_.throws = true;
  EXPECT_FALSE(result_of(end_of("s")));
  catalog_.throws = false;
  EXPECT_EQ(table_->size(), 1u);
  EXPECT_TRUE(result_of(end_of("s")));
  EXPECT_EQ(table_->size(), 0u);
}

TEST_F(SessionTableTest, EachEndsAtItsOwnTime) {
  make();
  for (const int ttl_s : {30, 10, 20}) {
    kv::SessionRecord made = record(std::to_string(ttl_s));
    made.ttl_s = ttl_s;
    made.last_used_s = clock_.unix_s();
    add(std::move(made));
  }
  for (const char* ended : {"10", "20", "30"}) {
    table_->touch(session("30"));
    clock_.advance(std::chrono::seconds(ended == std::string("30") ? 30 : 10));
    tasks_.timers().run_due();
    work();
    ASSERT_FALSE(ended_.empty());
    EXPECT_EQ(ended_.back(), ended);
  }
  EXPECT_EQ(ended_.size(), 3u);
}

TEST_F(SessionTableTest, ATimeToLiveGoesOnOverARestartAndNotWhileItIsUsed) {
  make();
  kv::SessionRecord made = record("s");
  made.ttl_s = 60;
  made.last_used_s = clock_.unix_s();
  add(std::move(made));
  clock_.advance(std::chrono::seconds(40));
  make();
  EXPECT_EQ(tasks_.timers().next() - clock_.now(), std::chrono::seconds(20));
  (void)lock("s");
  table_->begin_run(session("s"), RequestId{1});
  clock_.advance(std::chrono::seconds(100));
  tasks_.timers().run_due();
  work();
  EXPECT_EQ(table_->size(), 1u);
  table_->end_run(*table_->find(SessionId{"s"}));
  clock_.advance(std::chrono::seconds(59));
  tasks_.timers().run_due();
  work();
  EXPECT_EQ(table_->size(), 1u) << "its time began anew";
  clock_.advance(std::chrono::seconds(1));
  tasks_.timers().run_due();
  work();
  EXPECT_EQ(table_->size(), 0u);
  EXPECT_EQ(catalog_.kept.size(), 0u);
}

}  // namespace
}  // namespace uma::engine
