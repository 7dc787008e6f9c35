#include "base/byte_budget.h"

#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace uma {
namespace {

TEST(ByteBudget, GivesNoMoreThanThereIsAndTakesItBack) {
  const auto budget = std::make_shared<ByteBudget>(100);
  ByteBudget::Share first(budget);
  EXPECT_FALSE(first.grow(101));
  EXPECT_FALSE(first.grow(~std::uint64_t{0}));
  EXPECT_TRUE(first.grow(60));
  {
    ByteBudget::Share second(budget);
    EXPECT_FALSE(second.grow(41));
    EXPECT_TRUE(second.grow(40));
    const ByteBudget::Share moved(std::move(second));
    EXPECT_EQ(moved.bytes(), 40u);
    EXPECT_EQ(budget->bytes_used(), 100u);
  }
  EXPECT_EQ(budget->bytes_used(), 60u);
  EXPECT_TRUE(first.grow(40));
}

TEST(ByteBudget, ItsLimitMayChangeAndWhatIsHeldMayTurnOutToBeMore) {
  const auto budget = std::make_shared<ByteBudget>(100);
  ByteBudget::Share first(budget);
  EXPECT_TRUE(first.grow(60));
  budget->limit(50);
  EXPECT_EQ(first.bytes(), 60u);
  ByteBudget::Share second(budget);
  EXPECT_FALSE(second.grow(1));
  first.correct(30);
  EXPECT_TRUE(second.grow(20));
  second.correct(70);
  EXPECT_EQ(budget->bytes_used(), 100u);
  EXPECT_FALSE(first.grow(1));
  second = std::move(first);
  EXPECT_EQ(budget->bytes_used(), 30u) << "what it had is given back";
  ByteBudget::Share none;
  none.correct(5);
  EXPECT_EQ(none.bytes(), 0u);
}

TEST(ByteBudget, HoldsWhoeverAsksAtOnce) {
  const auto budget = std::make_shared<ByteBudget>(1'000);
  std::atomic<std::uint64_t> taken{0};
  std::barrier all_have_asked(4);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      std::vector<ByteBudget::Share> shares;
      for (int asked = 0; asked < 1'000; ++asked) {
        ByteBudget::Share share(budget);
        if (!share.grow(7)) continue;
        taken += 7;
        shares.push_back(std::move(share));
      }
      EXPECT_LE(budget->bytes_used(), 1'000u);
      all_have_asked.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken, 994u) << "142 shares of 7";
  EXPECT_EQ(budget->bytes_used(), 0u);
}

}  // namespace
}  // namespace uma
