#include "kv/shared/shared_states.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kv/shared/shared_store_test_support.h"
#include "testing/fake_shared_store.h"
#include "testing/sim_clock.h"

namespace uma::kv {
namespace {

using testing::FakeSharedStore;
using Urgency = SharedWriter::Urgency;

class SharedStatesTest : public ::testing::Test {
 protected:
  SharedStates make() {
    return {std::make_unique<FakeSharedStore>(content_), std::make_unique<FakeSharedStore>(content_), clock_};
  }
  // Writes a state; returns whether that succeeded.
  bool write(const std::string& session) {
    bool is_written = false;
    states_.writer.write(
        shared_owner(session), [&] { return share_snapshot(shared_snapshot(1, {100}), pool_); }, Urgency::soon,
        [&](const Expected<ColdHead>& written) { is_written = written.has_value(); });
    work();
    return is_written;
  }
  std::vector<ColdHead> look_up(const std::string& session) {
    std::vector<ColdHead> found;
    states_.reader.look_up(TenantId{"uid:1000"}, SessionId{session}, {"model|a"},
                           [&](std::vector<ColdHead> heads) { found = std::move(heads); });
    work();
    return found;
  }
  Expected<Snapshot> read(const ColdHead& head, TimePoint until = kNever) {
    Expected<Snapshot> result = fail(ErrorCode::io_failed, "no answer");
    states_.reader.read(head, pool_, until, [&](Expected<Snapshot> snapshot, double) { result = std::move(snapshot); });
    work();
    return result;
  }
  void work() {
    while (states_.writer.step()) {
    }
    while (states_.reader.step()) {
    }
  }

  testing::SimClock clock_;
  BytePool pool_{0};
  std::shared_ptr<FakeSharedStore::Content> content_ = std::make_shared<FakeSharedStore::Content>();
  SharedStates states_ = make();
};

TEST_F(SharedStatesTest, WhatIsWrittenIsFoundAndRead) {
  ASSERT_TRUE(write("s"));
  const auto heads = look_up("s");
  ASSERT_EQ(heads.size(), 1U);
  const auto read_back = read(heads[0]);
  ASSERT_TRUE(read_back);
  expect_same(shared_snapshot(1, {100}), *read_back);
  EXPECT_EQ(states_.stats.found_total.value(), 1U);
  EXPECT_EQ(states_.stats.read_bytes_total.value(), heads[0].bytes);
  EXPECT_EQ(states_.stats.written_bytes_total.value(), heads[0].bytes);
}

TEST_F(SharedStatesTest, AStoreThatFailsIsLeftAloneForAWhile) {
  ASSERT_TRUE(write("s"));
  content_->fails = [] { return true; };
  EXPECT_TRUE(look_up("s").empty());
  EXPECT_FALSE(write("t"));
  const std::size_t calls = content_->calls;
  content_->fails = nullptr;
  EXPECT_TRUE(look_up("s").empty());
  EXPECT_FALSE(write("t"));
  EXPECT_EQ(content_->calls, calls) << "nobody waits for it";
  clock_.advance(std::chrono::seconds(6));
  EXPECT_EQ(look_up("s").size(), 1U) << "requests ask again soon";
  clock_.advance(std::chrono::seconds(30));
  EXPECT_TRUE(write("t"));
}

TEST_F(SharedStatesTest, ReadsThatAreNotTriedDoNotMakeThePauseLonger) {
  ASSERT_TRUE(write("s"));
  const ColdHead head = look_up("s")[0];
  content_->fails = [] { return true; };
  EXPECT_FALSE(read(head));
  content_->fails = nullptr;
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(read(head));
    clock_.advance(std::chrono::milliseconds(1300));
  }
  EXPECT_TRUE(read(head));
  EXPECT_EQ(states_.stats.failed_total.value(), 1U);
}

TEST_F(SharedStatesTest, AWriteThatFailsDoesNotEndReads) {
  ASSERT_TRUE(write("s"));
  content_->fails = [] { return true; };
  EXPECT_FALSE(write("t"));
  content_->fails = nullptr;
  EXPECT_EQ(look_up("s").size(), 1U);
}

TEST_F(SharedStatesTest, AStateThatVanishedIsNoFailureOfTheStore) {
  ASSERT_TRUE(write("s"));
  const auto heads = look_up("s");
  ASSERT_EQ(heads.size(), 1U);
  content_->states.clear();
  EXPECT_FALSE(read(heads[0]));
  EXPECT_EQ(states_.stats.failed_total.value(), 0U);
  ASSERT_TRUE(write("s"));
  EXPECT_EQ(look_up("s").size(), 1U) << "it is asked again at once";
}

TEST_F(SharedStatesTest, UrgentWritesGoFirst) {
  std::vector<std::string> order;
  const auto add = [&](const std::string& session, Urgency urgency) {
    states_.writer.write(
        shared_owner(session), [&] { return share_snapshot(shared_snapshot(1, {100}), pool_); }, urgency,
        [&order, session](const Expected<ColdHead>&) { order.push_back(session); });
  };
  add("idle 1", Urgency::when_idle);
  add("idle 2", Urgency::when_idle);
  add("wanted 1", Urgency::soon);
  add("wanted 2", Urgency::soon);
  work();
  EXPECT_EQ(order, (std::vector<std::string>{"wanted 1", "wanted 2", "idle 1", "idle 2"}));
}

TEST_F(SharedStatesTest, AStateThatLeftTheMemoryIsNotWritten) {
  bool was_called = false;
  states_.writer.write(
      shared_owner("s"), [] { return SnapshotPtr(); }, Urgency::soon,
      [&](const Expected<ColdHead>& written) {
        was_called = true;
        EXPECT_FALSE(written);
      });
  work();
  EXPECT_TRUE(was_called);
  EXPECT_TRUE(content_->states.empty());
}

TEST_F(SharedStatesTest, AtTheEndWritesAreDoneUntilTheDeadline) {
  int written_count = 0;
  int called_count = 0;
  for (const std::string session : {"1", "2", "3"}) {
    states_.writer.write(
        shared_owner(session),
        [&] {
          clock_.advance(std::chrono::seconds(4));
          return share_snapshot(shared_snapshot(1, {100}), pool_);
        },
        Urgency::soon,
        [&](const Expected<ColdHead>& written) {
          ++called_count;
          written_count += written ? 1 : 0;
        });
  }
  states_.writer.close(clock_.now() + std::chrono::seconds(7));
  work();
  EXPECT_EQ(called_count, 3);
  EXPECT_EQ(written_count, 1) << "the second one was in progress when the time was over";
  EXPECT_FALSE(states_.writer.wait());
}

TEST_F(SharedStatesTest, ACallEndsAtItsLimit) {
  ASSERT_TRUE(write("s"));
  ColdHead head = look_up("s")[0];
  head.bytes = 10'000'000;
  content_->parts = 1000;
  content_->on_part = [&] { clock_.advance(std::chrono::seconds(1)); };
  const TimePoint began = clock_.now();
  const double before_ms = states_.reader.read_ms(head.bytes);
  EXPECT_FALSE(read(head, began + std::chrono::seconds(5)));
  EXPECT_EQ(clock_.now(), began + std::chrono::seconds(5));
  EXPECT_GT(states_.reader.read_ms(head.bytes), 1000);
  clock_.advance(std::chrono::minutes(6));
  EXPECT_EQ(states_.reader.read_ms(head.bytes), before_ms) << "it may be faster again";
  for (const auto& call : {std::function([&] { return look_up("s").empty(); }), std::function([&] { return !write("t"); })}) {
    const TimePoint before = clock_.now();
    EXPECT_TRUE(call());
    EXPECT_LE(clock_.now(), before + std::chrono::minutes(2));
  }
}

TEST_F(SharedStatesTest, WhatNobodyWaitsForAnyMoreIsNotRead) {
  ASSERT_TRUE(write("s"));
  const ColdHead head = look_up("s")[0];
  content_->on_part = [&] { clock_.advance(std::chrono::seconds(4)); };
  std::vector<bool> results;
  for (int i = 0; i < 2; ++i) {
    states_.reader.read(head, pool_, clock_.now() + std::chrono::seconds(3),
                        [&](const Expected<Snapshot>& snapshot, double) { results.push_back(snapshot.has_value()); });
  }
  work();
  EXPECT_EQ(results, (std::vector<bool>{true, false}));
  EXPECT_EQ(states_.stats.failed_total.value(), 0U) << "the store is not to blame";
}

// As with a network file system: the thread does not return from a call.
TEST_F(SharedStatesTest, NothingWaitsForAThreadThatHangs) {
  ASSERT_TRUE(write("s"));
  const ColdHead head = look_up("s")[0];
  int answered_count = 0;
  bool hangs = true;
  content_->on_part = [&] {
    if (!std::exchange(hangs, false)) return;
    clock_.advance(std::chrono::minutes(3));
    // Other threads go on.
    states_.reader.look_up(TenantId{"uid:1000"}, SessionId{"s"}, {"model|a"}, [&](const std::vector<ColdHead>& heads) {
      EXPECT_TRUE(heads.empty());
      ++answered_count;
    });
    states_.reader.read(head, pool_, kNever, [&](const Expected<Snapshot>& snapshot, double) {
      EXPECT_FALSE(snapshot);
      ++answered_count;
    });
    EXPECT_EQ(answered_count, 2);
    EXPECT_GT(states_.reader.read_ms(1), 1e9);
  };
  EXPECT_TRUE(read(head, clock_.now() + std::chrono::seconds(2)));
  EXPECT_LT(states_.reader.read_ms(1), 1e3) << "it is back";
  hangs = true;
  content_->on_part = [&] {
    if (!std::exchange(hangs, false)) return;
    clock_.advance(std::chrono::minutes(3));
    states_.writer.write(
        shared_owner("t"), [] { return SnapshotPtr(); }, Urgency::soon,
        [&](const Expected<ColdHead>& written) { answered_count += written ? 0 : 1; });
    EXPECT_EQ(answered_count, 3);
  };
  EXPECT_TRUE(write("u"));
  EXPECT_TRUE(write("v"));
}

TEST_F(SharedStatesTest, TheEndStopsTheCallInProgress) {
  ASSERT_TRUE(write("s"));
  const ColdHead head = look_up("s")[0];
  content_->parts = 1000;
  std::size_t parts_count = 0;
  content_->on_part = [&] {
    clock_.advance(std::chrono::seconds(1));
    if (++parts_count == 3) states_.writer.close(clock_.now() + std::chrono::seconds(2));
  };
  EXPECT_FALSE(write("t"));
  EXPECT_EQ(parts_count, 5U);
  content_->on_part = [&] {
    ++parts_count;
    states_.reader.close();
  };
  EXPECT_FALSE(read(head));
  EXPECT_EQ(parts_count, 6U);
}

TEST_F(SharedStatesTest, RemovalsReachTheStore) {
  ASSERT_TRUE(write("s"));
  states_.writer.remove(TenantId{"uid:1000"}, SessionId{"s"});
  work();
  EXPECT_TRUE(content_->states.empty());
}

TEST_F(SharedStatesTest, TheEstimateGrowsWithWhatWaits) {
  ASSERT_TRUE(write("s"));
  const double alone_ms = states_.reader.read_ms(1'000'000);
  ColdHead head = look_up("s")[0];
  head.bytes = 50'000'000;
  states_.reader.read(head, pool_, kNever, [](const Expected<Snapshot>&, double) {});
  EXPECT_GT(states_.reader.read_ms(1'000'000), 10 * alone_ms);
  work();
  EXPECT_LE(states_.reader.read_ms(1'000'000), alone_ms);
}

}  // namespace
}  // namespace uma::kv
