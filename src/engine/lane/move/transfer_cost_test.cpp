#include "engine/lane/move/transfer_cost.h"

#include <gtest/gtest.h>

namespace uma::engine {
namespace {

TEST(TransferCost, IsProportionalToTheBytesAndAMoveIsASaveAndALoad) {
  const TransferCost cost;
  EXPECT_GT(cost.load_ms(1'000'000), 0);
  EXPECT_DOUBLE_EQ(cost.load_ms(3'000'000), 3 * cost.load_ms(1'000'000));
  EXPECT_DOUBLE_EQ(cost.move_ms(1'000'000), 2 * cost.load_ms(1'000'000)) << "until a save was seen";
}

TEST(TransferCost, SavesThatAreSlowerThanLoadsMakeMovesDearer) {
  TransferCost cost;
  const double load_ms = cost.load_ms(1'000'000);
  for (int i = 0; i < 50; ++i) cost.observe_save(100'000'000, 300);
  EXPECT_DOUBLE_EQ(cost.load_ms(1'000'000), load_ms);
  EXPECT_NEAR(cost.move_ms(1'000'000), 3 + load_ms, 0.05);
}

TEST(TransferCost, FollowsLoadsThatTakeOtherTimes) {
  TransferCost cost;
  for (int i = 0; i < 50; ++i) cost.observe_load(100'000'000, 300);
  EXPECT_NEAR(cost.load_ms(1'000'000), 3, 0.05);
}

TEST(TransferCost, ASmallStateSaysLittle) {
  TransferCost cost;
  const double before = cost.load_ms(1'000'000);
  cost.observe_load(100, 1);  // 10 s a megabyte: the thread had to wait for a core.
  EXPECT_LT(cost.load_ms(1'000'000), before + 0.1);
  cost.observe_load(0, 1);
  EXPECT_LT(cost.load_ms(1'000'000), before + 0.1);
}

}  // namespace
}  // namespace uma::engine
