#include "server/outbox.h"

#include <format>
#include <memory>
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

TEST(Outbox, CountsAnswersUntilTheyAreWritten) {
  const auto memory = std::make_shared<TenantBudget>(1'000'000, "answers", "the limit");
  Outbox outbox(100, [] {}, memory->open(TenantId{"a"}));
  ASSERT_TRUE(outbox.append_answer("small", std::string(1000, 'x')));
  EXPECT_EQ(memory->bytes_used(), 0u);
  ASSERT_TRUE(outbox.append_answer("large", std::string(400'000, 'x')));
  EXPECT_EQ(memory->bytes_used(), 401'000u);
  EXPECT_FALSE(outbox.append_answer("refused", std::string(400'000, 'x')));
  EXPECT_EQ(take(outbox).finished_ids, (std::vector<std::string>{"small", "large"}));
  EXPECT_EQ(take(outbox).bytes.size(), 400'000u);
  outbox.mark_written(201'000);
  EXPECT_EQ(memory->bytes_used(), 200'000u);
  outbox.mark_written(200'000);
  EXPECT_EQ(memory->bytes_used(), 0u);
}

TEST(Outbox, LongAnswersAreMovedInTheirOrder) {
  Outbox outbox(1'000'000, [] {});
  std::string answer(100'000, 'x');
  std::string picture(200'000, 'y');
  const char* const answer_at = answer.data();
  const char* const picture_at = picture.data();
  outbox.append(text("first"));
  ASSERT_TRUE(outbox.append_answer("a", std::move(answer)));
  EXPECT_TRUE(outbox.append_long_unless_full(std::move(picture)));
  outbox.append_last_answer("b", "last");
  EXPECT_EQ(outbox.bytes_unsent(), 300'009u);
  EXPECT_EQ(take(outbox).bytes, "first");
  EXPECT_EQ(take(outbox).bytes.data(), answer_at) << "engine threads do not wait for a copy";
  outbox.seal();
  EXPECT_EQ(take(outbox).bytes.data(), picture_at) << "what is there is still taken";
  EXPECT_EQ(take(outbox).bytes, "last");
  EXPECT_EQ(take(outbox).bytes, "");
  outbox.mark_written(300'009);
  EXPECT_FALSE(outbox.is_full());
}

TEST(Outbox, ALastAnswerIsTakenAlsoWhereThereIsNoRoom) {
  const auto memory = std::make_shared<TenantBudget>(200'000, "answers", "the limit");
  Outbox outbox(100, [] {}, memory->open(TenantId{"a"}));
  EXPECT_FALSE(outbox.append_answer("refused", std::string(150'000, 'x')));
  outbox.append_last_answer("a", std::string(150'000, 'x'));
  const Taken taken = take(outbox);
  EXPECT_EQ(taken.bytes.size(), 150'000u);
  EXPECT_EQ(taken.finished_ids, std::vector<std::string>{"a"});
}

TEST(Outbox, DropsWhatMayBeDroppedWhileFull) {
  Outbox outbox(4, [] {});
  EXPECT_TRUE(outbox.append_unless_full(text("12")));
  EXPECT_TRUE(outbox.append_unless_full(text("34")));
  EXPECT_FALSE(outbox.append_unless_full(text("x")));
  outbox.append(text("5"));
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

TEST(Outbox, HasRoomBesideALargeFrame) {
  Outbox outbox(10, [] {});
  EXPECT_TRUE(outbox.append_unless_full(text("a frame of 21 bytes.\n")));
  EXPECT_TRUE(outbox.append_unless_full(text("12345")));
  EXPECT_TRUE(outbox.append_unless_full(text("67890")));
  EXPECT_FALSE(outbox.append_unless_full(text("x"))) << "10 bytes wait besides the frame";
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

TEST(Outbox, LongAnswersAreDrawnInTurnAndWhenNothingElseWaits) {
  int wake_ups = 0;
  Outbox outbox(100, [&] { ++wake_ups; });
  const auto counts_to = [](std::string name, int end) {
    return [name, end, next = 0](std::string& out) mutable {
      out += std::format("{}{} ", name, next);
      return ++next < end;
    };
  };
  outbox.append_drawn("a", counts_to("a", 3));
  outbox.append_drawn("b", counts_to("b", 1));
  EXPECT_EQ(wake_ups, 1);
  outbox.append(text("token"));
  EXPECT_EQ(take(outbox).bytes, "token");
  EXPECT_EQ(take(outbox).bytes, "a0 ");
  EXPECT_EQ(outbox.bytes_unsent(), 8u) << "drawn is not written";
  const Taken last_of_b = take(outbox);
  EXPECT_EQ(last_of_b.bytes, "b0 ");
  EXPECT_EQ(last_of_b.finished_ids, std::vector<std::string>{"b"});
  EXPECT_EQ(take(outbox).bytes, "a1 ");
  const Taken last_of_a = take(outbox);
  EXPECT_EQ(last_of_a.bytes, "a2 ");
  EXPECT_EQ(last_of_a.finished_ids, std::vector<std::string>{"a"});
  EXPECT_EQ(take(outbox).bytes, "");
}

TEST(Outbox, ASealGivesUpWhatLongAnswersHold) {
  Outbox outbox(100, [] {});
  const auto held = std::make_shared<int>(1);
  outbox.append_drawn("a", [held](std::string& out) {
    out += "x";
    return true;
  });
  EXPECT_EQ(take(outbox).bytes, "x");
  EXPECT_EQ(held.use_count(), 2);
  outbox.seal();
  EXPECT_EQ(held.use_count(), 1);
  outbox.append_drawn("b", [held](std::string&) { return false; });
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(take(outbox).bytes, "");
}

}  // namespace
}  // namespace uma::server
