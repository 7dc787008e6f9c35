#include "kv/catalog/postgres_catalog.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <format>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "base/random.h"
#include "base/utf8.h"
#include "kv/catalog/catalog_test_support.h"
#include "testing/running_clock.h"

namespace uma::kv {
namespace {

TEST(ShownAddress, HasNoPassword) {
  EXPECT_EQ(shown_address("postgresql://uma:secret@db.example/uma?sslmode=require"),
            "postgresql://uma:***@db.example/uma?sslmode=require");
  EXPECT_EQ(shown_address("postgresql://uma@db.example/uma"), "postgresql://uma@db.example/uma");
  EXPECT_EQ(shown_address("postgresql://db/uma?password=secret&user=uma"), "postgresql://db/uma?password=***&user=uma");
  EXPECT_EQ(shown_address("host=db user=uma password=secret"), "host=db user=uma password=***");
  EXPECT_EQ(shown_address("postgresql://a:b@c:d@host/uma"), "postgresql://a:***@host/uma");
}

TEST(PostgresText, IsWrittenAsPostgresqlCanHoldItAndReadBack) {
  using namespace std::string_literals;
  EXPECT_EQ(written_text("plain \xc3\xa4"), std::nullopt);
  EXPECT_EQ(written_text("a\0b"s),
            "a\x01\x30\x30"
            "b");
  EXPECT_EQ(written_text("\x01"), "\x01\x30\x31");
  EXPECT_EQ(written_text("\xc3(\xff"),
            "\x01"
            "c3(\x01"
            "ff");
  EXPECT_EQ(read_text("\x01 \x01"
                      "0"),
            "\x01 \x01"
            "0")
      << "no escape";
  Random random(3);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (std::uint64_t i = random.next_below(8); i > 0; --i)
      text +=
          "\0\x01\x30\x31"
          "a\xc3\xa4\xff"[random.next_below(8)];
    const std::string written = written_text(text).value_or(text);
    EXPECT_TRUE(is_utf8(written) && !written.contains('\0'));
    EXPECT_EQ(read_text(written).value_or(written), text);
  }
}

// Two daemons on one database.
class SharedCatalogTest : public ::testing::Test {
 protected:
  using Node = std::unique_ptr<PostgresCatalog>;

  void SetUp() override {
    init_log(LogLevel::error);
    if (PostgresServer::instance() == nullptr) GTEST_SKIP() << "PostgreSQL is not installed";
    address_ = PostgresServer::instance()->make_database();
  }
  // It waits for no other daemon.
  Node open(const std::string& name, Duration handover = {}) {
    return PostgresCatalog::open({.address = address_, .node = name, .handover = handover, .clock = &clock_}).value();
  }
  Node open_paged(const std::string& name) {
    return PostgresCatalog::open({.address = address_, .node = name, .handover = {}, .page_rows = 4, .clock = &clock_}).value();
  }
  static CatalogChanges changes_of(PostgresCatalog& node) {
    std::optional<Expected<CatalogChanges>> changes;
    node.changes([&](Expected<CatalogChanges> found) { changes = std::move(found); });
    EXPECT_TRUE(node.step());
    return std::move(changes.value().value());
  }
  static std::string refusal(const Expected<RecordPtr>& taken) {
    return taken ? "" : std::string(code_name(taken.error().code));
  }
  static void end(Node& node) {
    std::unique_ptr<Catalog> catalog = std::move(node);
    end_catalog(catalog);
  }
  void run_sql(const std::string& sql) { run_sql_on(address_, sql); }

  static constexpr Duration kReconnects = std::chrono::seconds(1);
  testing::RunningClock clock_;
  std::string address_;
};

TEST_F(SharedCatalogTest, ASessionHasOneOwner) {
  const Node a = open("a");
  const Node b = open("b");
  const RecordPtr record = share(text_session("s", 1));
  ASSERT_TRUE(commit_to(*a, record));
  const auto refused = read_from(*b, "s");
  EXPECT_EQ(refusal(refused), "E_SESSION_002");
  EXPECT_TRUE(refused.error().message.contains("node a")) << refused.error().message;
  EXPECT_EQ(refusal(read_from(*b, "other")), "E_SESSION_001");
  EXPECT_EQ(commit_to(*b, share(text_session("s", 2)), record).error().code, ErrorCode::limit_wait) << "b does not own it";
  EXPECT_EQ(remove_from(*b, "s").error().code, ErrorCode::limit_wait);

  EXPECT_EQ(changes_of(*a).wanted, std::vector{SessionId{"s"}});
  a->give_up(SessionId{"s"});
  EXPECT_TRUE(a->step());
  EXPECT_EQ(*read_from(*b, "s").value(), *record);
  const RecordPtr longer = share(text_session("s", 2));
  EXPECT_EQ(commit_to(*a, longer, record).error().code, ErrorCode::limit_wait) << "a has given it up";
  EXPECT_TRUE(commit_to(*b, longer, record));
  EXPECT_EQ(refusal(read_from(*a, "s")), "E_SESSION_002");
}

TEST_F(SharedCatalogTest, ASessionIsWaitedFor) {
  const Node a = open("a");
  const Node b = open("b", std::chrono::minutes(1));
  const RecordPtr record = share(text_session("s", 1));
  ASSERT_TRUE(commit_to(*a, record));
  std::optional<Expected<RecordPtr>> taken;
  b->take(SessionId{"s"}, [&](Expected<RecordPtr> read) { taken = std::move(read); });
  EXPECT_TRUE(b->step());
  EXPECT_FALSE(taken);
  ASSERT_EQ(changes_of(*a).wanted, std::vector{SessionId{"s"}});
  a->give_up(SessionId{"s"});
  EXPECT_TRUE(a->step());
  while (!taken) {
    EXPECT_TRUE(b->wait());
    b->step();
  }
  EXPECT_EQ(*taken->value(), *record);
}

TEST_F(SharedCatalogTest, WhoIsAskedForASessionAndWhoGetsItHearOfIt) {
  const Node a = open("a");
  const Node b = open("b", std::chrono::minutes(1));
  int heard_by_a = 0;
  int heard_by_b = 0;
  a->call_on_news([&] { ++heard_by_a; });
  b->call_on_news([&] { ++heard_by_b; });
  ASSERT_TRUE(commit_to(*a, share(text_session("s", 1))));
  std::optional<Expected<RecordPtr>> taken;
  b->take(SessionId{"s"}, [&](Expected<RecordPtr> read) { taken = std::move(read); });
  EXPECT_TRUE(b->step());
  for (int i = 0; i < 100 && heard_by_a == 0; ++i) {
    EXPECT_TRUE(a->wait());
    a->step();
  }
  ASSERT_EQ(heard_by_a, 1);
  EXPECT_EQ(changes_of(*a).wanted, std::vector{SessionId{"s"}});
  a->give_up(SessionId{"s"});
  EXPECT_TRUE(a->step());
  for (int i = 0; i < 100 && heard_by_b == 0; ++i) {
    EXPECT_TRUE(b->wait());
    b->step();
  }
  EXPECT_EQ(heard_by_b, 1);
  EXPECT_TRUE(taken && *taken);
}

TEST_F(SharedCatalogTest, ASessionThatIsGivenUpIsKeptForWhoAskedForIt) {
  const Node a = open("a");
  const Node b = open("b");
  ASSERT_TRUE(commit_to(*a, share(text_session("s", 1))));
  EXPECT_EQ(refusal(read_from(*b, "s")), "E_SESSION_002");
  a->give_up(SessionId{"s"});
  EXPECT_TRUE(a->step());
  run_sql("UPDATE sessions SET kept_until = clock_timestamp() + interval '1 hour'");  // The state is as if no time passed.
  EXPECT_EQ(refusal(read_from(*a, "s")), "E_SESSION_002");
  EXPECT_EQ(refusal(read_from(*b, "s")), "");
  // What nobody asked for is kept for nobody, and what is not taken is kept for a second.
  b->give_up(SessionId{"s"});
  EXPECT_TRUE(b->step());
  EXPECT_EQ(refusal(read_from(*a, "s")), "");
  EXPECT_EQ(refusal(read_from(*b, "s")), "E_SESSION_002");
  a->give_up(SessionId{"s"});
  EXPECT_TRUE(a->step());
  run_sql("UPDATE sessions SET kept_until = clock_timestamp() - interval '1 millisecond'");
  EXPECT_EQ(refusal(read_from(*a, "s")), "");
}

TEST_F(SharedCatalogTest, ASessionIsGivenUpBehindItsLastChange) {
  const Node a = open("a");
  const Node b = open("b");
  const RecordPtr first = share(text_session("s", 1));
  const RecordPtr second = share(text_session("s", 2));
  ASSERT_TRUE(commit_to(*a, first));
  for (int i = 0; i < 6; ++i) {
    a->commit(share(text_session(std::format("large{}", i), 1, 250'000)), nullptr,
              [](const Expected<Unit>& done) { EXPECT_TRUE(done); });
  }
  bool is_kept = false;
  a->commit(second, first, [&](const Expected<Unit>& done) { is_kept = done.has_value(); });
  a->give_up(SessionId{"s"});
  EXPECT_TRUE(a->step());
  EXPECT_FALSE(is_kept) << "a step does not store so much";
  EXPECT_EQ(refusal(read_from(*b, "s")), "E_SESSION_002");
  while (a->step()) {
  }
  EXPECT_TRUE(is_kept);
  EXPECT_EQ(*read_from(*b, "s").value(), *second);
}

TEST_F(SharedCatalogTest, ASessionIsFoundByItsNameBeforeItsId) {
  const Node a = open("a");
  const Node b = open("b");
  SessionRecord named = text_session("0123");
  named.name = "diary";
  ASSERT_TRUE(commit_to(*b, share(named)));
  ASSERT_TRUE(commit_to(*b, share(text_session("diary"))));
  const auto found = [&](const std::string& tenant, const std::string& session) {
    std::optional<Expected<SessionSummary>> summary;
    a->look_up(TenantId{tenant}, session, [&](Expected<SessionSummary> got) { summary = std::move(got); });
    EXPECT_TRUE(a->step());
    return summary.value() ? (*summary)->id.value : std::string(code_name(summary->error().code));
  };
  EXPECT_EQ(found("1000", "diary"), "0123");
  EXPECT_EQ(found("1000", "0123"), "0123");
  EXPECT_EQ(found("another", "0123"), "E_SESSION_001") << "it is another tenant's";
  EXPECT_EQ(found("1000", "nothing"), "E_SESSION_001");
  EXPECT_EQ(found("1000", std::string("no\0thing", 8)), "E_SESSION_001") << "the database gets no NUL";
  EXPECT_EQ(found("1000", "\xff"), "E_SESSION_001") << "nor what is no UTF-8";
}

// The database of a failover may lack the last commits.
TEST_F(SharedCatalogTest, AChangeOnAnotherStateThanItsOwnIsFencedOff) {
  const Node a = open("a");
  const RecordPtr first = share(text_session("s", 1));
  const RecordPtr second = share(text_session("s", 2));
  ASSERT_TRUE(commit_to(*a, first));
  run_sql("CREATE TABLE old AS SELECT * FROM sessions");
  ASSERT_TRUE(commit_to(*a, second, first));
  run_sql("UPDATE sessions SET fence = (SELECT fence FROM old)");
  EXPECT_EQ(commit_to(*a, share(text_session("s", 3)), second).error().code, ErrorCode::limit_wait);
}

TEST_F(SharedCatalogTest, ANameThatExistsIsCalledThat) {
  const Node a = open("a");
  const Node b = open("b");
  SessionRecord named = text_session("s");
  named.name = "diary";
  ASSERT_TRUE(commit_to(*a, share(named)));
  named.id.value = "t";
  EXPECT_EQ(commit_to(*b, share(named)).error().code, ErrorCode::session_name_taken);
  ASSERT_TRUE(commit_to(*b, share(text_session("u")))) << "statements go on after an error";
  EXPECT_EQ(refusal(read_from(*b, "u")), "");
}

TEST_F(SharedCatalogTest, ATenantHasNoMoreSessionsThanItMayHowManyDaemonsEverMakeThem) {
  const auto open_limited = [&](const std::string& name) {
    return PostgresCatalog::open({.address = address_, .node = name, .handover = {}, .tenant_sessions_max = 5}).value();
  };
  std::vector<Node> nodes;
  for (const char* name : {"a", "b", "c"}) nodes.push_back(open_limited(name));
  std::atomic<int> made = 0;
  {
    std::vector<std::jthread> threads;
    for (const Node& node : nodes) {
      threads.emplace_back([&, which = node->run()] {
        for (int i = 0; i < 4; ++i) {
          const auto done = commit_to(*node, share(text_session(std::format("s{}-{}", which, i))));
          if (done) {
            ++made;
          } else {
            EXPECT_EQ(done.error().code, ErrorCode::limit_quota) << done.error().message;
          }
        }
      });
    }
  }
  EXPECT_EQ(made, 5);
  // Those that are together in one transaction, of which some are too many.
  int kept = 0;
  for (int i = 0; i < 3; ++i) {
    SessionRecord other = text_session(std::format("other{}", i));
    other.tenant.value = "another";
    nodes[0]->commit(share(other), nullptr, [&](const Expected<Unit>& done) { kept += done ? 1 : 0; });
    nodes[0]->commit(share(text_session(std::format("more{}", i))), nullptr,
                     [&](const Expected<Unit>& done) { kept += done ? 100 : 0; });
  }
  EXPECT_TRUE(nodes[0]->step());
  EXPECT_EQ(kept, 3);
}

TEST_F(SharedCatalogTest, WhatADaemonOwnsWithoutKnowingIsGivenUp) {
  const Node a = open("a");
  const Node b = open("b");
  ASSERT_TRUE(commit_to(*a, share(text_session("s", 1))));
  run_sql("UPDATE sessions SET fence = fence + 7");  // Nobody's change is possible now.
  EXPECT_EQ(refusal(read_from(*b, "s")), "E_SESSION_002");
  EXPECT_EQ(changes_of(*a).wanted, std::vector{SessionId{"s"}});
  a->give_up(SessionId{"s"});
  EXPECT_TRUE(a->step());
  EXPECT_EQ(refusal(read_from(*b, "s")), "");
}

TEST_F(SharedCatalogTest, ARowThatIsBeingChangedIsInUse) {
  const Node a = open("a");
  const Node b = open("b");
  ASSERT_TRUE(commit_to(*a, share(text_session("s", 1))));
  a->give_up(SessionId{"s"});
  EXPECT_TRUE(a->step());
  PostgresConnection slow(address_);
  ASSERT_TRUE(slow.connect("slow", {}));
  ASSERT_TRUE(slow.run("BEGIN; UPDATE sessions SET ttl_s = 7"));
  EXPECT_EQ(refusal(read_from(*b, "s")), "E_SESSION_002") << "and b has not waited for it";
  ASSERT_TRUE(slow.run("COMMIT"));
  EXPECT_EQ(read_from(*b, "s").value()->ttl_s, 7);
}

TEST_F(SharedCatalogTest, OthersSeeWhatChanges) {
  const Node a = open("a");
  const Node b = open("b");
  EXPECT_TRUE(b->load().empty());
  EXPECT_TRUE(changes_of(*b).changed.empty());
  const RecordPtr record = share(text_session("s", 1));
  ASSERT_TRUE(commit_to(*a, record));
  EXPECT_EQ(changes_of(*b).changed, std::vector{summary_of(*record)});
  SessionRecord named = *record;
  named.name = "diary";
  named.metadata = R"({"title":"My diary"})";
  ASSERT_TRUE(commit_to(*a, share(named), record));
  const CatalogChanges seen = changes_of(*b);
  EXPECT_EQ(seen.changed, std::vector{summary_of(named)});
  EXPECT_FALSE(seen.is_complete);
  ASSERT_TRUE(remove_from(*a, "s"));
  EXPECT_EQ(changes_of(*b).ended, std::vector{SessionId{"s"}});
  EXPECT_TRUE(changes_of(*a).changed.empty()) << "one's own are known";
  EXPECT_TRUE(open("c")->load().empty());
}

TEST_F(SharedCatalogTest, ALongListComesInPages) {
  const Node a = open("a");
  std::vector<std::string> ids;
  for (int i = 0; i < 10; ++i) {
    ids.push_back("s" + std::to_string(i));
    ASSERT_TRUE(commit_to(*a, share(text_session(ids.back()))));
  }
  const Node b = open_paged("b");
  EXPECT_EQ(b->load().size(), 10u);
  const auto ids_of = [](const std::vector<SessionSummary>& summaries) {
    std::vector<std::string> found;
    for (const SessionSummary& summary : summaries) found.push_back(summary.id.value);
    std::ranges::sort(found);
    return found;
  };
  run_sql("UPDATE sessions SET ttl_s = 7");  // In one transaction.
  std::vector<SessionSummary> seen;
  for (int page = 0; page < 3; ++page) {
    CatalogChanges changes = changes_of(*b);
    EXPECT_LE(changes.changed.size(), 4u);
    EXPECT_EQ(changes.has_more, page < 2);
    EXPECT_FALSE(changes.is_complete);
    std::ranges::move(changes.changed, std::back_inserter(seen));
  }
  EXPECT_EQ(ids_of(seen), ids);

  // After a lost connection everything is listed anew. Meanwhile sessions end and begin.
  b->disconnect();
  clock_.advance(kReconnects);
  seen = changes_of(*b).changed;
  ASSERT_TRUE(remove_from(*a, "s0"));
  ASSERT_TRUE(remove_from(*a, "s9"));
  ASSERT_TRUE(commit_to(*a, share(text_session("new"))));
  CatalogChanges last;
  do {
    last = changes_of(*b);
    std::ranges::move(last.changed, std::back_inserter(seen));
  } while (last.has_more);
  EXPECT_TRUE(last.is_complete);
  EXPECT_EQ(ids_of(seen).size(), 10u);
  std::ranges::sort(last.all);
  EXPECT_EQ(last.all.size(), 10u) << "with s0, whose end is heard of next";
  EXPECT_TRUE(std::ranges::contains(changes_of(*b).ended, SessionId{"s0"}));
}

// A session may be committed after the page that it belongs to was read, and be found by its name.
TEST_F(SharedCatalogTest, ASessionThatIsFoundWhileAllAreListedIsAmongThem) {
  const Node a = open("a");
  ASSERT_TRUE(commit_to(*a, share(text_session("s0"))));
  PostgresConnection slow(address_);
  ASSERT_TRUE(slow.connect("slow", {"uma.run=0"}));
  ASSERT_TRUE(
      slow.run("BEGIN; INSERT INTO sessions (id, tenant, model, mode, turns_count, tokens_count, pending_tokens_count, "
               "messages_count, pending_messages_count, ttl_s, created_s, last_used_s) "
               "VALUES ('late', '1000', '', 0, 0, 0, 0, 0, 0, 0, 0, 0)"));
  for (int i = 1; i < 6; ++i) ASSERT_TRUE(commit_to(*a, share(text_session("s" + std::to_string(i)))));
  const Node b = open_paged("b");
  b->disconnect();
  clock_.advance(kReconnects);
  EXPECT_TRUE(changes_of(*b).has_more);
  ASSERT_TRUE(slow.run("COMMIT"));
  std::optional<Expected<SessionSummary>> found;
  b->look_up(TenantId{"1000"}, "late", [&](Expected<SessionSummary> got) { found = std::move(got); });
  EXPECT_TRUE(b->step());
  ASSERT_TRUE(found.value());
  const CatalogChanges last = changes_of(*b);
  ASSERT_TRUE(last.is_complete);
  EXPECT_TRUE(std::ranges::contains(last.all, SessionId{"late"}));
}

// The transaction with the smaller number ends after the one with the larger.
TEST_F(SharedCatalogTest, AChangeThatWasCommittedLateIsSeen) {
  const Node a = open("a");
  ASSERT_TRUE(commit_to(*a, share(text_session("first"))));
  ASSERT_TRUE(commit_to(*a, share(text_session("second"))));
  const Node b = open("b");
  PostgresConnection slow(address_);
  ASSERT_TRUE(slow.connect("slow", {}));
  ASSERT_TRUE(slow.run("BEGIN; UPDATE sessions SET ttl_s = 7 WHERE id = 'first'"));
  run_sql("UPDATE sessions SET ttl_s = 8 WHERE id = 'second'");
  auto seen = changes_of(*b).changed;
  EXPECT_TRUE(std::ranges::none_of(seen, [](const SessionSummary& summary) { return summary.ttl_s == 7; }));
  EXPECT_TRUE(std::ranges::any_of(seen, [](const SessionSummary& summary) { return summary.ttl_s == 8; }));
  ASSERT_TRUE(slow.run("COMMIT"));
  seen = changes_of(*b).changed;
  EXPECT_TRUE(std::ranges::any_of(seen, [](const SessionSummary& summary) { return summary.ttl_s == 7; }));
}

TEST_F(SharedCatalogTest, ASessionIsTakenWhenTheLeaseOfItsOwnerHasEnded) {
  const Node a = open("a");
  const Node b = open("b");
  const RecordPtr record = share(text_session("s", 1));
  ASSERT_TRUE(commit_to(*a, record));
  EXPECT_EQ(a->lease(), 1u);
  EXPECT_EQ(refusal(read_from(*b, "s")), "E_SESSION_002");
  // As time does.
  run_sql("UPDATE daemons SET lease_until = clock_timestamp() - interval '1 second' WHERE node = 'a'");
  EXPECT_EQ(*read_from(*b, "s").value(), *record);
  const RecordPtr next = share(text_session("s", 2));
  EXPECT_EQ(commit_to(*a, next, record).error().code, ErrorCode::limit_wait);
  EXPECT_EQ(*read_from(*b, "s").value(), *record) << "a has stored nothing";
  ASSERT_TRUE(commit_to(*b, next, record));
}

// Until another daemon takes it, a session stays its owner's, even if the lease has ended.
TEST_F(SharedCatalogTest, TheDatabaseIsCalledLostWhenRenewalsAreMissed) {
  const Node a = open("a");
  EXPECT_TRUE(a->is_reachable());
  const Node b = PostgresCatalog::open({.address = address_, .node = "b", .lease = std::chrono::milliseconds(1)}).value();
  while (b->is_reachable()) std::this_thread::yield();  // Nobody renews its lease.
  EXPECT_TRUE(a->is_reachable());
}

TEST_F(SharedCatalogTest, AnEndedLeaseAloneCostsNothing) {
  const Node a = open("a");
  const RecordPtr record = share(text_session("s", 1));
  ASSERT_TRUE(commit_to(*a, record));
  run_sql("UPDATE daemons SET lease_until = clock_timestamp() - interval '1 second'");
  EXPECT_TRUE(commit_to(*a, share(text_session("s", 2)), record));
}

TEST_F(SharedCatalogTest, AnEarlierOwnerIsFencedOffAlsoWhenItOwnsTheSessionAgain) {
  const Node a = open("a");
  const Node b = open("b");
  const RecordPtr record = share(text_session("s", 1));
  ASSERT_TRUE(commit_to(*a, record));
  // b had it meanwhile, and a owns it again, of which this a knows nothing.
  run_sql("UPDATE sessions SET fence = fence + 2");
  EXPECT_EQ(commit_to(*a, share(text_session("s", 2)), record).error().code, ErrorCode::limit_wait);
  EXPECT_EQ(*read_from(*a, "s").value(), *record);
  EXPECT_TRUE(commit_to(*a, share(text_session("s", 2)), record));
}

TEST_F(SharedCatalogTest, ALostConnectionIsOpenedAgain) {
  const Node a = open("a");
  const RecordPtr record = share(text_session("s", 1));
  ASSERT_TRUE(commit_to(*a, record));
  a->disconnect();
  const RecordPtr next = share(text_session("s", 2));
  EXPECT_EQ(commit_to(*a, next, record).error().code, ErrorCode::io_failed) << "it connects once a second";
  clock_.advance(kReconnects);
  ASSERT_TRUE(commit_to(*a, next, record)) << "the session is still its own";
  EXPECT_EQ(*read_from(*a, "s").value(), *next);
}

TEST_F(SharedCatalogTest, AServerThatEndsTheConnectionCostsOneAnswer) {
  const Node a = open("a");
  const RecordPtr record = share(text_session("s", 1));
  ASSERT_TRUE(commit_to(*a, record));
  clock_.advance(kReconnects);
  run_sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'umad a'");
  const RecordPtr next = share(text_session("s", 2));
  const auto lost = commit_to(*a, next, record);
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, ErrorCode::io_failed) << "it was lost before the commit";
  clock_.advance(kReconnects);
  EXPECT_EQ(*read_from(*a, "s").value(), *record) << "this one was not stored";
  EXPECT_TRUE(commit_to(*a, next, record));
}

// A server that crashed may have given the number of a transaction that left no trace to another one, which was committed.
TEST_F(SharedCatalogTest, TheOutcomeOfALostCommitIsInItsRows) {
  const Node a = open("a");
  const RecordPtr record = share(text_session("s", 1));
  const RecordPtr other = share(text_session("t", 1));
  ASSERT_TRUE(commit_to(*a, record));
  ASSERT_TRUE(commit_to(*a, other));
  run_sql(
      "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS "
      "$$BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END$$; "
      "CREATE CONSTRAINT TRIGGER lose AFTER INSERT OR DELETE ON turns DEFERRABLE INITIALLY DEFERRED "
      "FOR EACH ROW EXECUTE FUNCTION lose(); "
      "CREATE FUNCTION public.pg_xact_status(xid8) RETURNS text LANGUAGE sql AS $$SELECT 'committed'$$; "
      "DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END$$");
  const auto changed = commit_to(*a, share(text_session("s", 2)), record);
  const auto made = commit_to(*a, share(text_session("u", 2)));
  const auto removed = remove_from(*a, "t");
  for (const auto* lost : {&changed, &made, &removed}) {
    ASSERT_FALSE(*lost);
    EXPECT_EQ(lost->error().code, ErrorCode::io_failed) << lost->error().message;
  }
  run_sql("DROP TRIGGER lose ON turns");
  EXPECT_EQ(*read_from(*a, "s").value(), *record);
  EXPECT_EQ(*read_from(*a, "t").value(), *other);
  EXPECT_EQ(refusal(read_from(*a, "u")), "E_SESSION_001");
}

TEST_F(SharedCatalogTest, ADaemonThatEndsLeavesItsSessionsToOthers) {
  Node a = open("a");
  const Node b = open("b");
  const RecordPtr record = share(text_session("s", 1));
  ASSERT_TRUE(commit_to(*a, record));
  end(a);
  EXPECT_EQ(*read_from(*b, "s").value(), *record);
}

TEST_F(SharedCatalogTest, AFailedChangeCostsNoOther) {
  const Node a = open("a");
  SessionRecord named = text_session("named");
  named.name = "diary";
  ASSERT_TRUE(commit_to(*a, share(named)));
  SessionRecord same = text_session("same");
  same.name = "diary";
  SessionRecord impossible = text_session("impossible", 1);
  impossible.turns[0].reply_begin = 900;
  std::vector<std::pair<std::string, Expected<Unit>>> results;
  for (const SessionRecord& record : {text_session("before", 3), same, impossible, text_session("behind", 3)}) {
    a->commit(share(record), nullptr,
              [&, id = record.id.value](Expected<Unit> done) { results.emplace_back(id, std::move(done)); });
  }
  EXPECT_TRUE(a->step());
  ASSERT_EQ(results.size(), 4u);
  for (const auto& [id, done] : results) EXPECT_EQ(done.has_value(), id == "before" || id == "behind") << id;
  EXPECT_EQ(*read_from(*a, "behind").value(), text_session("behind", 3));
  EXPECT_EQ(refusal(read_from(*a, "same")), "E_SESSION_001");
}

TEST_F(SharedCatalogTest, TablesOfALaterVersionAreLeftAlone) {
  open("a");
  run_sql("UPDATE uma_schema SET version = 99 WHERE part = 'sessions'");
  const auto refused = PostgresCatalog::open({.address = address_, .node = "b"});
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().message.contains("version 99")) << refused.error().message;
}

TEST_F(SharedCatalogTest, DaemonsMakeTheTablesTogether) {
  std::vector<Node> nodes(4);
  {
    std::vector<std::jthread> threads;
    for (Node& node : nodes) threads.emplace_back([&] { node = open("n"); });
  }
  std::vector<std::int64_t> runs;
  for (const Node& node : nodes) runs.push_back(node->run());
  std::ranges::sort(runs);
  EXPECT_EQ(runs, (std::vector<std::int64_t>{1, 2, 3, 4}));
}

TEST_F(SharedCatalogTest, AnAddressWhereNobodyAnswersIsAnError) {
  const auto refused = PostgresCatalog::open({.address = "host=/nowhere dbname=uma password=secret", .node = "a"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::io_failed);
  EXPECT_FALSE(refused.error().message.contains("secret")) << refused.error().message;
}

}  // namespace
}  // namespace uma::kv
