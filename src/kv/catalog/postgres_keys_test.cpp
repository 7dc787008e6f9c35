#include "kv/catalog/postgres_keys.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.h"
#include "kv/catalog/postgres_test_support.h"
#include "testing/running_clock.h"

namespace uma::kv {
namespace {

class PostgresKeysTest : public ::testing::Test {
 protected:
  using Keys = std::unique_ptr<PostgresKeys>;

  void SetUp() override {
    init_log(LogLevel::error);
    if (PostgresServer::instance() == nullptr) GTEST_SKIP() << "PostgreSQL is not installed";
    address_ = PostgresServer::instance()->make_database();
  }
  Keys open(const std::string& node) { return PostgresKeys::open(address_, node, clock_).value(); }
  // The text if it has changed; "same" if not.
  static std::string news(PostgresKeys& keys) { return keys.read_changes().value().value_or("same"); }
  static Expected<Unit> append(PostgresKeys& keys, const std::string& line) {
    return keys.edit([&](const std::string& text) -> Expected<std::string> { return text + line + "\n"; });
  }
  void run_sql(const std::string& sql) { run_sql_on(address_, sql); }

  testing::RunningClock clock_;
  std::string address_;
};

TEST_F(PostgresKeysTest, AChangeIsReadByAll) {
  const Keys a = open("a");
  const Keys b = open("b");
  EXPECT_EQ(news(*b), "");
  ASSERT_TRUE(append(*a, "boss sha256:1 admin=true"));
  ASSERT_TRUE(append(*a, "ci sha256:2  # of robots"));
  EXPECT_EQ(news(*b), "boss sha256:1 admin=true\nci sha256:2\n");
  EXPECT_EQ(news(*b), "same");
  ASSERT_TRUE(b->edit([](const std::string& text) -> Expected<std::string> {
    EXPECT_EQ(text, "boss sha256:1 admin=true\nci sha256:2\n");
    return "ci sha256:3\n";
  }));
  EXPECT_EQ(news(*a), "ci sha256:3\n");
}

TEST_F(PostgresKeysTest, ARefusedEditChangesNothing) {
  const Keys a = open("a");
  ASSERT_TRUE(append(*a, "ci sha256:2"));
  EXPECT_EQ(news(*a), "ci sha256:2\n");
  const auto refused = a->edit([](const std::string&) { return fail(ErrorCode::proto_field, "no"); });
  EXPECT_EQ(refused.error().code, ErrorCode::proto_field);
  EXPECT_EQ(news(*a), "same");
}

TEST_F(PostgresKeysTest, TheFirstKeysAreStoredOnce) {
  const Keys a = open("a");
  const Keys b = open("b");
  EXPECT_TRUE(a->begin_with("# first\nboss sha256:1\n").value());
  EXPECT_FALSE(b->begin_with("other sha256:2\n").value());
  EXPECT_EQ(news(*b), "boss sha256:1\n");
  // Keys that were deleted do not come back.
  run_sql("DELETE FROM api_keys");
  EXPECT_EQ(news(*b), "");
  EXPECT_FALSE(b->begin_with("boss sha256:1\n").value());
}

TEST_F(PostgresKeysTest, EditsFollowOneAnother) {
  const Keys a = open("a");
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        const Keys keys = open("n");
        for (int k = 0; k < 5; ++k) EXPECT_TRUE(append(*keys, "k" + std::to_string(i * 5 + k) + " sha256:1"));
      });
    }
  }
  EXPECT_EQ(std::ranges::count(news(*a), '\n'), 20) << "no edit has overwritten another";
}

TEST_F(PostgresKeysTest, ALostConnectionIsOpenedAgain) {
  const Keys a = open("a");
  ASSERT_TRUE(append(*a, "ci sha256:2"));
  EXPECT_EQ(news(*a), "ci sha256:2\n");
  a->disconnect();
  EXPECT_EQ(a->read_changes().error().code, ErrorCode::io_failed) << "it connects once a second";
  EXPECT_EQ(append(*a, "other sha256:3").error().code, ErrorCode::io_failed);
  clock_.advance(std::chrono::seconds(1));
  EXPECT_EQ(news(*a), "ci sha256:2\n") << "the database may be another one";
}

// A lock that another session holds for long.
TEST_F(PostgresKeysTest, ACallInProgressEndsWhenItIsCancelled) {
  const Keys a = open("a");
  PostgresConnection other(address_);
  ASSERT_TRUE(other.connect("test", {}));
  ASSERT_TRUE(other.run("BEGIN; LOCK TABLE api_keys_version"));
  Expected<std::optional<std::string>> answer;
  std::thread reader([&] { answer = a->read_changes(); });
  a->cancel();
  reader.join();
  ASSERT_FALSE(answer);
  EXPECT_NE(answer.error().message.find("the daemon stops"), std::string::npos) << answer.error().message;
  EXPECT_EQ(append(*a, "ci sha256:2").error().code, ErrorCode::io_failed) << "and so do later ones";
  PostgresConnection third(address_);
  ASSERT_TRUE(third.connect("test", {}));
  std::thread canceller([&] { third.cancel(); });
  const auto slept = third.run("SELECT pg_sleep(10)");
  canceller.join();
  ASSERT_FALSE(slept);
  EXPECT_TRUE(slept.error().is_lost()) << slept.error().message;
}

}  // namespace
}  // namespace uma::kv
