#include "engine/session_table.h"

#include <new>
#include <optional>

#include <gtest/gtest.h>

#include "base/log.h"
#include "base/random.h"
#include "engine/router_test_support.h"
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
    options.post = [this](std::move_only_function<void()> command) { posted_.push_back(std::move(command)); };
    options.random = [this] { return random_.next_u64(); };
    options.on_committed = [](const kv::SessionRecord&) {};
    options.on_ended = [this](const Session& session) { ended_.push_back(session.summary.id.value); };
    table_.emplace(std::move(options), catalog_, clock_);
  }
  // What the catalog has answered comes to the table.
  void work() {
    while (!posted_.empty()) {
      std::vector<std::move_only_function<void()>> now = std::exchange(posted_, {});
      for (auto& command : now) command();
      table_->check_invariants();
    }
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
  // Adds and commits it.
  void add(kv::SessionRecord made) {
    const SessionId id = made.id;
    const auto shared = std::make_shared<const kv::SessionRecord>(std::move(made));
    SessionLock lock = table_->lock(table_->add(shared, 0, {}));
    table_->touch(*table_->find(id));
    table_->commit(shared, nullptr, [lock = std::move(lock)](const Expected<Unit>& done) mutable {
      EXPECT_TRUE(done);
      lock.release();
    });
    work();
  }
  Expected<Session*> used(const std::string& name) {
    Expected<Session*> got = nullptr;
    table_->with(kTenant, name, [&](Expected<Session*> found) { got = found; });
    work();
    return got;
  }

  Random random_{1};
  testing::SimClock clock_;
  DiskCatalog catalog_;
  std::optional<SessionTable> table_;
  std::vector<std::move_only_function<void()>> posted_;
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
  const auto none = used("two");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::session_unknown);
}

TEST_F(SessionTableTest, WhatComesToALockedSessionWaitsInItsOrder) {
  make();
  add(record("s"));
  std::optional<SessionLock> lock = table_->lock(*table_->find(SessionId{"s"}));
  std::string order;
  for (const char c : {'a', 'b'}) {
    table_->with(kTenant, "s", [&order, c](Expected<Session*> found) { order += found ? c : '-'; });
  }
  table_->put_first(SessionId{"s"}, [&](Expected<Session*> found) {
    order += 'f';
    lock = table_->lock(**found);
  });
  EXPECT_EQ(order, "");
  lock->release();
  EXPECT_EQ(order, "f") << "it has locked the session again";
  lock->release();
  EXPECT_EQ(order, "fab");
}

TEST_F(SessionTableTest, ALockThatIsLetGoUnlocksTheSessionByACommandOfItsOwn) {
  make();
  add(record("s"));
  int used = 0;
  {
    const SessionLock lock = table_->lock(*table_->find(SessionId{"s"}));
    table_->with(kTenant, "s", [&](const Expected<Session*>&) {
      ++used;
      throw std::bad_alloc();
    });
    table_->with(kTenant, "s", [&](const Expected<Session*>&) { ++used; });
  }
  EXPECT_EQ(used, 0);
  work();
  EXPECT_EQ(used, 2) << "one that throws keeps no other waiting";
  EXPECT_FALSE(table_->find(SessionId{"s"})->is_locked);
}

TEST_F(SessionTableTest, RecordsNobodyUsesLeaveMemoryAndAreReadAgain) {
  const std::size_t one = kv::bytes_of(record("s0", 100));
  make({}, 2 * one + one / 2);
  for (int i = 0; i < 3; ++i) add(record("s" + std::to_string(i), 100));
  EXPECT_EQ(table_->find(SessionId{"s0"})->record, nullptr);
  EXPECT_NE(table_->find(SessionId{"s1"})->record, nullptr);
  EXPECT_EQ(catalog_.readings, 0);
  const auto read = used("s0");
  ASSERT_TRUE(read);
  EXPECT_EQ((*read)->record->chain.size(), 100u);
  EXPECT_EQ(catalog_.readings, 1);
  EXPECT_EQ(table_->find(SessionId{"s1"})->record, nullptr);
  // What runs stays, however long ago it was used.
  table_->begin_run(*table_->find(SessionId{"s0"}), RequestId{1});
  EXPECT_TRUE(used("s1"));
  EXPECT_TRUE(used("s2"));
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
  EXPECT_TRUE(table_->check_quota(kTenant, 1, 40));
  EXPECT_EQ(table_->check_quota(kTenant, 1, 41).error().code, ErrorCode::limit_quota);
  EXPECT_TRUE(table_->check_quota(TenantId{"b"}, 1, 100));

  Session& session = *table_->find(SessionId{"s"});
  SessionLock lock = table_->lock(session);
  catalog_.is_full = true;
  bool failed = false;
  table_->commit(std::make_shared<const kv::SessionRecord>(record("s", 90)), session.record, [&](const Expected<Unit>& done) {
    failed = !done;
    lock.release();
  });
  EXPECT_FALSE(table_->check_quota(kTenant, 0, 11));
  work();
  EXPECT_TRUE(failed);
  EXPECT_EQ(session.record->chain.size(), 60u);
  EXPECT_TRUE(table_->check_quota(kTenant, 0, 40));
  catalog_.is_full = false;

  add(record("t"));
  EXPECT_EQ(table_->check_quota(kTenant, 1, 0).error().code, ErrorCode::limit_quota);
  // One that a response has made counts before it is in the catalog, and not when it is discarded.
  kv::SessionRecord other = record("o");
  other.tenant = TenantId{"b"};
  Session& made = table_->add(std::make_shared<const kv::SessionRecord>(std::move(other)), 0, {});
  table_->begin_run(made, RequestId{1});
  EXPECT_EQ(table_->check_quota(TenantId{"c"}, 1, 0).error().code, ErrorCode::limit_sessions);
  table_->erase(SessionId{"o"});
  EXPECT_TRUE(table_->check_quota(TenantId{"c"}, 1, 0));
  EXPECT_EQ(table_->count(), 2);
  table_->check_invariants();
}

TEST_F(SessionTableTest, ASessionEndsWhenNothingOfItIsUnderWayAndTheCatalogHasForgottenIt) {
  make();
  add(record("s"));
  Session& session = *table_->find(SessionId{"s"});
  table_->begin_run(session, RequestId{1});
  std::vector<bool> answers;
  table_->end(session, [&](const Expected<Unit>& done) { answers.push_back(done.has_value()); });
  work();
  EXPECT_TRUE(answers.empty()) << "a request runs in it";
  catalog_.is_full = true;
  table_->end_run(session);
  table_->end_when_idle(session);
  work();
  EXPECT_EQ(answers, (std::vector<bool>{false}));
  EXPECT_TRUE(used("s")) << "it is as it was";

  catalog_.is_full = false;
  table_->end(session, [&](const Expected<Unit>& done) { answers.push_back(done.has_value()); });
  bool refused = false;
  table_->with(kTenant, "s", [&](Expected<Session*> found) { refused = !found; });
  work();
  EXPECT_EQ(answers, (std::vector<bool>{false, true}));
  EXPECT_TRUE(refused) << "it came while the session ended";
  EXPECT_EQ(ended_, (std::vector<std::string>{"s"}));
  EXPECT_EQ(table_->size(), 0u);
}

TEST_F(SessionTableTest, ATimeToLiveGoesOnOverARestartAndNotWhileItIsUsed) {
  make();
  kv::SessionRecord made = record("s");
  made.ttl_s = 60;
  made.last_used_s = clock_.unix_s();
  add(std::move(made));
  clock_.advance(std::chrono::seconds(40));
  make();
  EXPECT_EQ(table_->next_expiry() - clock_.now(), std::chrono::seconds(20));
  EXPECT_TRUE(used("s"));
  table_->begin_run(*table_->find(SessionId{"s"}), RequestId{1});
  clock_.advance(std::chrono::seconds(100));
  table_->expire();
  work();
  EXPECT_EQ(table_->size(), 1u);
  table_->end_run(*table_->find(SessionId{"s"}));
  clock_.advance(std::chrono::seconds(59));
  table_->expire();
  work();
  EXPECT_EQ(table_->size(), 1u) << "its time began anew";
  clock_.advance(std::chrono::seconds(1));
  table_->expire();
  work();
  EXPECT_EQ(table_->size(), 0u);
  EXPECT_EQ(catalog_.kept.size(), 0u);
}

}  // namespace
}  // namespace uma::engine
