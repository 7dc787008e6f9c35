#include "sched/bytes_moved.h"

#include <gtest/gtest.h>

namespace uma::sched {
namespace {

TEST(WeightsRead, ADenseModelIsReadOnceWhateverTheRows) {
  EXPECT_EQ(weights_read({.always = 1000}, 1), 1000);
  EXPECT_EQ(weights_read({.always = 1000}, 64), 1000);
}

TEST(WeightsRead, OfAMixtureTheExpertsThatTheRowsNeed) {
  const WeightBytes mixture{.always = 100, .experts = 800, .experts_count = 8, .experts_used = 2};
  EXPECT_DOUBLE_EQ(weights_read(mixture, 1), 100 + 200);
  EXPECT_DOUBLE_EQ(weights_read(mixture, 2), 100 + 800 * (1 - 0.75 * 0.75));
  EXPECT_NEAR(weights_read(mixture, 100), 900, 1e-6);
}

TEST(BandwidthBudget, HoldsCallsToItsRate) {
  BandwidthBudget budget(1e6);  // A thousand bytes a ms.
  budget.charge(5000, 100);
  EXPECT_DOUBLE_EQ(budget.free_at_ms(), 105);
  budget.charge(5000, 105);
  EXPECT_DOUBLE_EQ(budget.free_at_ms(), 110);
  budget.charge(1000, 200);
  EXPECT_DOUBLE_EQ(budget.free_at_ms(), 201) << "idle time is not saved up";
  budget.charge(1000, 200);
  EXPECT_DOUBLE_EQ(budget.free_at_ms(), 202) << "two lanes at once share it";
}

TEST(BandwidthBudget, ZeroIsNoLimit) {
  BandwidthBudget budget(0);
  budget.charge(1e12, 5);
  EXPECT_EQ(budget.free_at_ms(), 0);
}

}  // namespace
}  // namespace uma::sched
