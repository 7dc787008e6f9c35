#include "kv/shared/shared_redis.h"

#include <chrono>
#include <functional>
#include <hiredis/hiredis.h>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kv/shared/redis_test_support.h"
#include "kv/shared/shared_prefix_test_support.h"
#include "kv/shared/shared_store_test_support.h"

namespace uma::kv {
namespace {

constexpr std::int64_t kStartS = 1'800'000'000;

class SharedRedisTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = RedisServer::start(flags_);
    if (server_ == nullptr) GTEST_SKIP() << "Redis is not installed";
    connection_ = std::make_unique<RedisConnection>(server_->options());
  }

  [[nodiscard]] SharedRedis daemon(SharedBounds bounds = {}) {
    return {server_->options(), bounds, [this] { return now_s_; }};
  }
  // The answer as text; lists with a space between their items.
  std::string ask(const std::vector<std::string>& command) {
    const std::vector<std::string_view> parts(command.begin(), command.end());
    const auto reply = connection_->call(parts);
    if (!reply) return reply.error().message;
    if ((*reply)->type == REDIS_REPLY_INTEGER) return std::to_string((*reply)->integer);
    if ((*reply)->type == REDIS_REPLY_NIL) return "";
    if ((*reply)->type != REDIS_REPLY_ARRAY) return {(*reply)->str, (*reply)->len};
    std::string all;
    for (std::size_t i = 0; i < (*reply)->elements; ++i) {
      all += (i == 0 ? "" : " ") + std::string((*reply)->element[i]->str, (*reply)->element[i]->len);
    }
    return all;
  }
  std::vector<std::string> keys(const std::string& pattern) {
    std::vector<std::string> found;
    const std::string all = ask({"KEYS", pattern});
    for (std::size_t begin = 0; begin < all.size();) {
      const std::size_t end = std::min(all.find(' ', begin), all.size());
      found.push_back(all.substr(begin, end - begin));
      begin = end + 1;
    }
    return found;
  }

  std::vector<std::string> flags_;
  std::unique_ptr<RedisServer> server_;
  std::unique_ptr<RedisConnection> connection_;
  std::int64_t now_s_ = kStartS;
};

TEST_F(SharedRedisTest, AnotherDaemonReadsWhatOneHasWritten) {
  SharedRedis a = daemon();
  SharedRedis b = daemon();
  // Chunks end inside pieces, and pieces inside chunks.
  const Snapshot state = shared_snapshot(1, {100, kRedisChunkBytes + 5000, 0, kRedisChunkBytes});
  const ColdHead written = SharedStoreUser(a).write("s", state);
  const auto heads = SharedStoreUser(b).find("s");
  ASSERT_EQ(heads.size(), 1U);
  EXPECT_EQ(heads[0].name, written.name);
  EXPECT_EQ(heads[0].tokens, state.tokens);
  const auto read = SharedStoreUser(b).read_only("s");
  ASSERT_TRUE(read);
  expect_same(state, *read);
  EXPECT_EQ(keys("uma:1:c:*").size(), 3U);
  for (const std::string& key : keys("uma:1:[sch]:*")) EXPECT_GT(std::stoi(ask({"TTL", key})), 86'000) << key;
}

TEST_F(SharedRedisTest, OfASessionTheLastStateOfEachIdentityStays) {
  SharedRedis a = daemon();
  SharedStoreUser user(a);
  const ColdHead first = user.write("s", shared_snapshot(1, {100}));
  (void)user.write("s", shared_snapshot(5, {100, 100}));
  (void)user.write("s", shared_snapshot(1, {100}, "model|b"));
  EXPECT_EQ(keys("uma:1:h:*").size(), 2U);
  EXPECT_EQ(user.find("s")[0].tokens.size(), 2U);
  EXPECT_EQ(user.find("s", {"model|a", "model|b", "other"}).size(), 2U);
  const auto gone = user.read(first);
  ASSERT_TRUE(gone) << gone.error().message;
  EXPECT_FALSE(*gone);
  for (int i = 0; i < 10; ++i) (void)user.write("s", shared_snapshot(1, {100}, std::format("model|{}", i)));
  EXPECT_EQ(keys("uma:1:h:*").size(), kSharedIdentitiesMax);
  EXPECT_EQ(ask({"ZCARD", "uma:1:index"}), std::to_string(kSharedIdentitiesMax));
}

TEST_F(SharedRedisTest, ARemovedSessionLeavesNothing) {
  SharedRedis a = daemon();
  (void)SharedStoreUser(a).write("s", shared_snapshot(1, {100}));
  ASSERT_TRUE(a.remove(TenantId{"uid:1000"}, SessionId{"s"}));
  EXPECT_TRUE(keys("*").empty());
  EXPECT_TRUE(a.remove(TenantId{"uid:1000"}, SessionId{"s"}));
}

TEST_F(SharedRedisTest, WrongBytesAreFoundAndRemoved) {
  const std::vector<std::pair<std::string, std::function<void(const std::string&)>>> changes = {
      {"uma:1:h:*", [&](const std::string& key) { ask({"SETRANGE", key, "60", "?"}); }},
      {"uma:1:h:*", [&](const std::string& key) { ask({"SET", key, "short"}); }},
      {"uma:1:h:*", [&](const std::string& key) { ask({"SET", key, ""}); }},
      {"uma:1:c:*", [&](const std::string& key) { ask({"SETRANGE", key, "4200", "?"}); }},
      {"uma:1:c:*", [&](const std::string& key) { ask({"SETRANGE", key, "150", "?"}); }},  // between pieces
      {"uma:1:c:*", [&](const std::string& key) { ask({"SET", key, "short"}); }},
      {"uma:1:c:*", [&](const std::string& key) { ask({"APPEND", key, "more"}); }},
      {"uma:1:c:*", [&](const std::string& key) { ask({"SET", key, ""}); }},
  };
  SharedRedis a = daemon();
  SharedStoreUser user(a);
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const ColdHead head = user.write("s", shared_snapshot(1, {100, 5000}));
    const auto changed = keys(changes[i].first);
    ASSERT_EQ(changed.size(), 1U);
    changes[i].second(changed[0]);
    const auto found = user.find("s");
    if (!found.empty()) {
      const auto read = user.read(head);
      ASSERT_FALSE(read) << i;
      EXPECT_EQ(read.error().code, ErrorCode::runtime_decode) << read.error().message;
    }
    EXPECT_TRUE(user.find("s").empty()) << i;
    EXPECT_TRUE(keys("uma:1:[ch]:*").empty()) << i;
  }
}

TEST_F(SharedRedisTest, KeysThatVanishAreStatesThatVanish) {
  SharedRedis a = daemon();
  SharedStoreUser user(a);
  for (const std::string kind : {"uma:1:h:*", "uma:1:c:*"}) {
    const ColdHead head = user.write("s", shared_snapshot(1, {100}));
    ask({"DEL", keys(kind)[0]});
    const auto read = user.read(head);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_FALSE(*read);
  }
  const ColdHead head = user.write("s", shared_snapshot(1, {100}));
  ask({"FLUSHALL"});
  EXPECT_TRUE(user.find("s").empty());
  EXPECT_TRUE(user.read(head));
  EXPECT_EQ(a.clean(), 0U);
  (void)user.write("s", shared_snapshot(1, {100}));
  EXPECT_TRUE(user.read_only("s"));
}

TEST_F(SharedRedisTest, StatesOfOthersAreRefusedUnderAnyName) {
  SharedRedis a = daemon();
  SharedStoreUser user(a);
  const std::string session = shared_session_name(TenantId{"uid:1000"}, SessionId{"s"});
  const std::string others = shared_session_name(TenantId{"uid:2000"}, SessionId{"s"});
  const std::string identity = shared_identity_name("model|a");
  ASSERT_TRUE(a.write(shared_owner("s", "uid:2000"), shared_snapshot(1, {100})));
  std::string theirs = ask({"HGET", "uma:1:s:" + others, identity});
  // Another tenant's state under the session's name.
  ask({"HSET", "uma:1:s:" + session, identity, theirs});
  EXPECT_TRUE(user.find("s").empty());
  ask({"HSET", "uma:1:s:" + session, identity, session + theirs.substr(32)});
  EXPECT_TRUE(user.find("s").empty());
  // A state of another model under the name of this one.
  ASSERT_TRUE(a.write(shared_owner("s"), shared_snapshot(1, {100}, "model|b")));
  theirs = ask({"HGET", "uma:1:s:" + session, shared_identity_name("model|b")});
  ask({"HSET", "uma:1:s:" + session, identity, theirs.substr(0, 33) + identity + theirs.substr(65)});
  EXPECT_TRUE(user.find("s").empty());
}

TEST_F(SharedRedisTest, WrongValuesOfOtherKindsAreNoStates) {
  SharedRedis a = daemon();
  SharedStoreUser user(a);
  const std::string session = "uma:1:s:" + shared_session_name(TenantId{"uid:1000"}, SessionId{"s"});
  const std::string identity = shared_identity_name("model|a");
  for (const std::string value : {"", "x", ":::::", "a:b:c:d:e:f", "9:9:9:9:9:9:9"}) {
    ask({"HSET", session, identity, value});
    EXPECT_TRUE(user.find("s").empty()) << value;
  }
  ask({"ZADD", "uma:1:index", "1", "nonsense"});
  EXPECT_EQ(a.clean(), 0U);
  EXPECT_EQ(ask({"ZCARD", "uma:1:index"}), "0");
  ask({"DEL", session});
  ask({"SET", session, "a text"});
  const std::vector<std::string> identities = {"model|a"};
  EXPECT_FALSE(a.find(TenantId{"uid:1000"}, SessionId{"s"}, identities)) << "WRONGTYPE is a failure of the store";
}

TEST_F(SharedRedisTest, PrefixesAreFoundByTheirTenantOnly) {
  SharedRedis a = daemon();
  SharedRedis b = daemon();
  expect_prefixes_of_tenants_apart(a, b);
}

TEST_F(SharedRedisTest, DaemonsWriteAndReadOneSessionAtOnce) {
  EXPECT_EQ(failures_of_daemons_at_once([&] { return daemon(); }), 0);
}

TEST_F(SharedRedisTest, OldStatesAreRemovedAndUsedOnesStay) {
  SharedRedis a = daemon({.ttl_s = 1000});
  SharedStoreUser user(a);
  (void)user.write("old", shared_snapshot(1, {100}));
  (void)user.write("used", shared_snapshot(1, {100}));
  now_s_ += 900;
  ASSERT_TRUE(user.read_only("used"));
  now_s_ += 200;
  EXPECT_EQ(a.clean(), 1U);
  EXPECT_TRUE(user.find("old").empty());
  EXPECT_EQ(user.find("used").size(), 1U);
}

TEST_F(SharedRedisTest, TheLongestUnusedStatesGoBeyondTheBound) {
  SharedRedis a = daemon({.bytes_max = 30'000});
  SharedStoreUser user(a);
  for (const std::string session : {"1", "2", "3", "4"}) {
    (void)user.write(session, shared_snapshot(1, {8000}));
    ++now_s_;
  }
  EXPECT_EQ(a.clean(), 2U);
  EXPECT_TRUE(user.find("1").empty());
  EXPECT_TRUE(user.find("2").empty());
  EXPECT_EQ(user.find("4").size(), 1U);
  EXPECT_EQ(a.clean(), 0U);
}

TEST_F(SharedRedisTest, WhatAKilledDaemonHasHalfWrittenIsRemovedLater) {
  SharedRedis a = daemon({.ttl_s = 1000});
  (void)SharedStoreUser(a).write("s", shared_snapshot(1, {100}));
  // As if it had ended before the last step.
  ask({"DEL", keys("uma:1:s:*")[0]});
  now_s_ += 2000;
  EXPECT_EQ(a.clean(), 1U);
  EXPECT_TRUE(keys("*").empty());
}

TEST_F(SharedRedisTest, AStateThatIsTooLargeIsNotWritten) {
  SharedRedis a = daemon({.state_bytes_max = 10'000});
  const auto refused = a.write(shared_owner("s"), shared_snapshot(1, {20'000}));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::limit_quota);
  EXPECT_TRUE(keys("*").empty());
}

TEST_F(SharedRedisTest, AServerThatStartedAgainIsUsedAtOnce) {
  SharedRedis a = daemon();
  SharedStoreUser user(a);
  (void)user.write("s", shared_snapshot(1, {100}));
  server_->stop();
  const std::vector<std::string> identities = {"model|a"};
  const auto down = a.find(TenantId{"uid:1000"}, SessionId{"s"}, identities);
  ASSERT_FALSE(down);
  EXPECT_EQ(down.error().code, ErrorCode::io_failed);
  server_->run();
  EXPECT_TRUE(user.find("s").empty());
  (void)user.write("s", shared_snapshot(1, {100}));
  EXPECT_EQ(user.find("s").size(), 1U);
}

TEST_F(SharedRedisTest, AConnectionThatWasEndedIsMadeAgain) {
  SharedRedis a = daemon();
  SharedStoreUser user(a);
  (void)user.write("s", shared_snapshot(1, {100}));
  ask({"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"});
  EXPECT_EQ(user.find("s").size(), 1U);
}

TEST_F(SharedRedisTest, AServerThatHangsCostsItsTimeLimit) {
  RedisOptions options = server_->options();
  options.call_limit = std::chrono::milliseconds(50);
  SharedRedis a(options, {}, [this] { return now_s_; });
  server_->pause();
  const std::vector<std::string> identities = {"model|a"};
  const auto late = a.find(TenantId{"uid:1000"}, SessionId{"s"}, identities);
  server_->go_on();
  ASSERT_FALSE(late);
  EXPECT_NE(late.error().message.find("no answer to HVALS within 50 ms"), std::string::npos) << late.error().message;
  // What it says later is not taken for the answer to another question.
  EXPECT_EQ(ask({"PING"}), "PONG");
}

TEST(SharedRedisWithoutServer, AServerThatSaysNothingCostsItsTimeLimit) {
  const auto [listener, port] = listen_on_loopback();
  SharedRedis a(
      {.address = {.host = "127.0.0.1", .port = port}, .password = "secret", .call_limit = std::chrono::milliseconds(50)}, {},
      [] { return kStartS; });
  const auto written = a.write(shared_owner("s"), shared_snapshot(1, {100}));
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ErrorCode::io_failed);
  EXPECT_EQ(written.error().message.find("secret"), std::string::npos);
}

TEST_F(SharedRedisTest, CallsThatTakeTooLongAreGivenUp) {
  SharedRedis a = daemon();
  SharedStoreUser user(a);
  const Snapshot state = shared_snapshot(1, {2 * kRedisChunkBytes});
  const ColdHead head = user.write("s", state);
  int questions_count = 0;
  a.give_up_when([&] { return ++questions_count > 5; });
  const auto read = user.read(head);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::io_failed);
  questions_count = 0;
  EXPECT_FALSE(a.write(shared_owner("s"), state));
  a.give_up_when(nullptr);
  EXPECT_TRUE(user.read_only("s")) << "it is as it was";
}

TEST_F(SharedRedisTest, ARoundTripHasSeveralCommands) {
  ASSERT_TRUE(connection_->call_all(std::vector<std::vector<std::string>>{{"SET", "a", "1"}, {"INCR", "a"}, {"INCR", "a"}}));
  EXPECT_EQ(ask({"GET", "a"}), "3");
  const auto failed = connection_->call_all(std::vector<std::vector<std::string>>{{"LPUSH", "a", "1"}, {"INCR", "a"}});
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().message.find("LPUSH"), std::string::npos) << failed.error().message;
  EXPECT_EQ(ask({"GET", "a"}), "4") << "the others have run, and their answers were read";
}

// Each byte comes in time, the whole does not.
TEST(SharedRedisWithoutServer, AServerThatAnswersSlowlyIsLeftInTheMiddle) {
  auto [listener, port] = listen_on_loopback();
  std::thread server([&listener] {
    const UniqueFd client(::accept(listener.get(), nullptr, nullptr));
    const std::string begin = "$1000000000\r\n";
    ssize_t sent = ::send(client.get(), begin.data(), begin.size(), MSG_NOSIGNAL);
    while (sent > 0) sent = ::send(client.get(), "x", 1, MSG_NOSIGNAL);
  });
  RedisConnection connection({.address = {.host = "127.0.0.1", .port = port}});
  int questions_count = 0;
  connection.give_up_when([&] { return ++questions_count > 10; });
  EXPECT_FALSE(connection.call({"GET", "a"}));
  server.join();
}

TEST(SharedRedisWithoutServer, AServerThatTalksNonsenseIsAFailureOfTheStore) {
  auto [listener, port] = listen_on_loopback();
  std::thread server([&listener] {
    for (int i = 0; i < 2; ++i) {
      const UniqueFd client(::accept(listener.get(), nullptr, nullptr));
      char request[4096];
      (void)::recv(client.get(), request, sizeof request, 0);
      const std::string nonsense = i == 0 ? "HTTP/1.1 400 Bad Request\r\n\r\n" : "*3\r\n$5\r\nhello\r\n$-1\r\n:7\r\n";
      (void)::send(client.get(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL);
    }
  });
  const std::vector<std::string> identities = {"model|a"};
  for (int i = 0; i < 2; ++i) {
    SharedRedis a({.address = {.host = "127.0.0.1", .port = port}}, {}, [] { return kStartS; });
    const auto found = a.find(TenantId{"uid:1000"}, SessionId{"s"}, identities);
    EXPECT_EQ(found.has_value(), i == 1);
    EXPECT_TRUE(!found || found->empty());
  }
  server.join();
}

TEST(SharedRedisWithoutServer, APortWhereNobodyListensFails) {
  const std::uint16_t port = listen_on_loopback().second;
  SharedRedis a({.address = {.host = "127.0.0.1", .port = port}}, {}, [] { return kStartS; });
  EXPECT_FALSE(a.clean());
}

class FullRedisTest : public SharedRedisTest {
 protected:
  void SetUp() override {
    flags_ = {"--maxmemory", "20mb", "--maxmemory-policy", "noeviction"};
    SharedRedisTest::SetUp();
  }
};

TEST_F(FullRedisTest, AFullServerRefusesAndIsStillRead) {
  SharedRedis a = daemon();
  SharedStoreUser user(a);
  (void)user.write("s", shared_snapshot(1, {100}));
  const auto refused = a.write(shared_owner("large"), shared_snapshot(1, {10 * kRedisChunkBytes}));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("OOM"), std::string::npos) << refused.error().message;
  EXPECT_TRUE(user.read_only("s"));
  EXPECT_EQ(keys("uma:1:c:*").size(), 1U) << "what was written of it is removed";
  EXPECT_EQ(ask({"ZCARD", "uma:1:index"}), "1");
}

class LockedRedisTest : public SharedRedisTest {
 protected:
  void SetUp() override {
    flags_ = {"--requirepass", "right", "--user", "uma", "on", ">mine", "~uma:*", "+@all"};
    SharedRedisTest::SetUp();
  }
};

TEST_F(LockedRedisTest, PasswordsAreSent) {
  const auto finds = [&](const std::string& user, const std::string& password) {
    RedisOptions options = server_->options();
    options.address.user = user;
    options.password = password;
    SharedRedis a(options, {}, [this] { return now_s_; });
    const std::vector<std::string> identities = {"model|a"};
    const auto found = a.find(TenantId{"uid:1000"}, SessionId{"s"}, identities);
    EXPECT_TRUE(found || password.empty() || !found.error().message.contains(password)) << password;
    return found.has_value();
  };
  EXPECT_TRUE(finds("", "right"));
  EXPECT_TRUE(finds("uma", "mine"));
  EXPECT_FALSE(finds("", "wrong"));
  EXPECT_FALSE(finds("uma", "right"));
  EXPECT_FALSE(finds("", ""));
}

}  // namespace
}  // namespace uma::kv
