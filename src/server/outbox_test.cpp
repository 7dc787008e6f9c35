#include "server/outbox.h"

#include <thread>

#include <gtest/gtest.h>

namespace uma::server {
namespace {

auto text(std::string_view bytes) {
  return [bytes](std::string& out) { out.append(bytes); };
}

struct Taken {
  std::string bytes;
  std::vector<std::string> finished_ids;
};

Taken take(Outbox& outbox) {
  Taken taken;
  outbox.take(taken.bytes, taken.finished_ids);
  return taken;
}

TEST(Outbox, ABurstCostsOneWakeUp) {
  int wake_ups = 0;
  Outbox outbox(100, [&] { ++wake_ups; });
  outbox.append(text("a"));
  EXPECT_TRUE(outbox.append_unless_full(text("b")));
  outbox.append_last("r1", text("c"));
  EXPECT_EQ(wake_ups, 1);
  const Taken taken = take(outbox);
  EXPECT_EQ(taken.bytes, "abc");
  EXPECT_EQ(taken.finished_ids, std::vector<std::string>{"r1"});
  outbox.append(text("d"));
  EXPECT_EQ(wake_ups, 2);
}

TEST(Outbox, DropsWhatMayBeDroppedWhileFull) {
  Outbox outbox(4, [] {});
  EXPECT_TRUE(outbox.append_unless_full(text("12345")));
  EXPECT_TRUE(outbox.is_full());
  EXPECT_FALSE(outbox.append_unless_full(text("x")));
  outbox.append_last("r1", text("end"));
  EXPECT_EQ(take(outbox).bytes, "12345end");
  EXPECT_TRUE(outbox.is_full()) << "taken is not written";
  outbox.mark_written(5);
  EXPECT_FALSE(outbox.is_full());
  EXPECT_EQ(outbox.bytes_unsent(), 3u);
  EXPECT_TRUE(outbox.append_unless_full(text("y")));
}

TEST(Outbox, SealedItGivesWhatIsThereAndTakesNoMore) {
  int wake_ups = 0;
  Outbox outbox(100, [&] { ++wake_ups; });
  outbox.append(text("a"));
  outbox.seal();
  outbox.append(text("b"));
  outbox.append_last("r1", text("c"));
  EXPECT_TRUE(outbox.append_unless_full(text("d"))) << "the client is gone, not slow";
  const Taken taken = take(outbox);
  EXPECT_EQ(taken.bytes, "a");
  EXPECT_TRUE(taken.finished_ids.empty());
  EXPECT_EQ(wake_ups, 1);
}

TEST(Outbox, LosesAndTearsNothingBetweenThreads) {
  Outbox outbox(SIZE_MAX, [] {});
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) outbox.append(text("<frame>"));
    });
  }
  std::string all;
  std::vector<std::string> ids;
  while (all.size() < 4u * 1000u * 7u) {
    std::string bytes;
    outbox.take(bytes, ids);
    outbox.mark_written(bytes.size());
    all += bytes;
  }
  for (std::thread& writer : writers) writer.join();
  for (std::size_t at = 0; at < all.size(); at += 7) ASSERT_EQ(all.substr(at, 7), "<frame>");
  EXPECT_EQ(outbox.bytes_unsent(), 0u);
}

}  // namespace
}  // namespace uma::server
