#include "server/http/reply_log.h"

#include <format>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace uma::server {
namespace {

const TenantId kTenant{"one"};

class ReplyLogTest : public ::testing::Test {
 protected:
  using ReaderPtr = std::unique_ptr<ReplyLog::Reader>;

  std::shared_ptr<ReplyLog> make_log() const { return std::make_shared<ReplyLog>(memory_->open(kTenant)); }
  static std::string event(int number, std::size_t bytes = 0) {
    return std::format("event: e\ndata: {}{}\n\n", number, std::string(bytes, 'x'));
  }
  ReaderPtr reader_of(ReplyLog& log, std::optional<std::uint64_t> after = std::nullopt) {
    auto reader = log.open_reader(after, [this] { ++wakes_; });
    EXPECT_TRUE(reader.has_value());
    return std::move(*reader);
  }
  // What the reader gets until there is no more.
  static std::string read_all(ReplyLog::Reader& reader) {
    std::string all;
    for (std::size_t before = 1; before != all.size();) {
      before = all.size();
      (void)reader.read(all);
    }
    return all;
  }

  const std::shared_ptr<TenantBudget> memory_ = std::make_shared<TenantBudget>(8u << 20, "holders", "the limit");
  int wakes_ = 0;
};

TEST_F(ReplyLogTest, EveryReaderGetsTheSameEvents) {
  const auto log = make_log();
  const ReaderPtr first = reader_of(*log);
  log->append(event(0) + event(1));
  std::string got = read_all(*first);
  log->append(event(2));
  const ReaderPtr second = reader_of(*log);
  log->append(event(3));
  log->end();
  got += read_all(*first);
  EXPECT_EQ(got, event(0) + event(1) + event(2) + event(3));
  EXPECT_EQ(read_all(*second), got);
  std::string none;
  EXPECT_EQ(second->read(none), ReplyLog::State::ended);
  EXPECT_EQ(read_all(*reader_of(*log)), got) << "one that comes after the end";
}

TEST_F(ReplyLogTest, AReaderThatCannotBeWokenKeepsNobodyFromIt) {
  const auto log = make_log();
  auto broken = log->open_reader(std::nullopt, [] { throw std::bad_alloc(); });
  ASSERT_TRUE(broken.has_value());
  const ReaderPtr other = reader_of(*log);
  read_all(**broken);
  read_all(*other);
  log->append(event(0));
  EXPECT_EQ(wakes_, 1);
  read_all(**broken);
  read_all(*other);
  log->end();
  EXPECT_EQ(wakes_, 2);
}

TEST_F(ReplyLogTest, AReaderBeginsBehindTheEventThatItNames) {
  const auto log = make_log();
  constexpr int kEvents = 300;  // Several blocks.
  for (int i = 0; i < kEvents; ++i) log->append(event(i, 1000));
  for (const int after : {0, 1, 63, 64, 65, 130, 299}) {
    std::string expected;
    for (int i = after + 1; i < kEvents; ++i) expected += event(i, 1000);
    EXPECT_EQ(read_all(*reader_of(*log, after)), expected) << after;
  }
  const ReaderPtr ahead = reader_of(*log, 1'000'000);
  EXPECT_EQ(read_all(*ahead), "");
  log->append(event(300));
  EXPECT_EQ(read_all(*ahead), event(300)) << "those that follow";
}

TEST_F(ReplyLogTest, AReaderIsWokenOnceUntilItReads) {
  const auto log = make_log();
  const ReaderPtr reader = reader_of(*log);
  log->append(event(0));
  EXPECT_EQ(wakes_, 0) << "it has not found it empty";
  (void)read_all(*reader);
  log->append(event(1));
  log->append(event(2));
  EXPECT_EQ(wakes_, 1);
  (void)read_all(*reader);
  log->end();
  EXPECT_EQ(wakes_, 2);
}

TEST_F(ReplyLogTest, WithoutMemoryTheOldestEventsAreDropped) {
  const auto others = memory_->open(kTenant);
  ASSERT_TRUE(others->grow(4u << 20)) << "as much as the tenant may hold";
  const auto log = make_log();
  const ReaderPtr slow = reader_of(*log);
  const ReaderPtr fast = reader_of(*log);
  std::size_t read = 0;
  for (int i = 0; i < 1000; ++i) {
    log->append(event(i, 1000));
    read += read_all(*fast).size();
  }
  EXPECT_GT(read, 1'000'000u) << "a reader that keeps up gets everything";
  EXPECT_LE(log->bytes(), ReplyLog::kTailBytes + ReplyLog::kBlockBytes);
  std::string out;
  EXPECT_EQ(slow->read(out), ReplyLog::State::lost);
  EXPECT_EQ(out, "");
  const auto refused = log->open_reader(std::nullopt, [] {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::session_busy);
  EXPECT_EQ(read_all(*reader_of(*log, 998)), event(999, 1000));
}

TEST_F(ReplyLogTest, IsChargedToItsTenantAndLimited) {
  auto log = make_log();
  for (int i = 0; i < 2000; ++i) log->append(event(i, 1000));
  EXPECT_EQ(read_all(*reader_of(*log)).size(), log->bytes());
  EXPECT_GE(memory_->bytes_used() + ReplyLog::kTailBytes, log->bytes());
  log.reset();
  EXPECT_EQ(memory_->bytes_used(), 0u);

  const auto large = std::make_shared<TenantBudget>(1ul << 30, "holders", "the limit");
  const auto endless = std::make_shared<ReplyLog>(large->open(kTenant));
  for (int i = 0; i < 20'000; ++i) endless->append(event(i, 1000));
  EXPECT_LE(endless->bytes(), ReplyLog::kBytesMax + ReplyLog::kBlockBytes);
}

TEST_F(ReplyLogTest, HasSoManyReadersAtOnce) {
  const auto log = make_log();
  std::vector<ReaderPtr> readers;
  for (std::size_t i = 0; i < ReplyLog::kReadersMax; ++i) readers.push_back(reader_of(*log));
  EXPECT_EQ(log->open_reader(std::nullopt, [] {}).error().code, ErrorCode::limit_wait);
  readers.pop_back();
  EXPECT_TRUE(log->open_reader(std::nullopt, [] {}).has_value());
}

}  // namespace
}  // namespace uma::server
