#include "pool/load_priority.h"

#include <vector>

#include <gtest/gtest.h>

namespace uma::pool {
namespace {

constexpr int kUsual = 3;
constexpr int kLow = load_niceness(true, kUsual);

TEST(LoadPriority, ALoadIsLikeTheDaemonExceptBesideStreams) {
  EXPECT_EQ(load_niceness(false, kUsual), kUsual);
  EXPECT_GT(kLow, 10);
  EXPECT_EQ(load_niceness(true, 19), 19) << "it is never raised";
}

TEST(LoadPriority, FollowsTheStreams) {
  std::vector<int> set;
  LoadPriority priority(
      [&](int niceness) {
        set.push_back(niceness);
        return true;
      },
      kUsual);
  for (const bool has_streams : {false, true, true, false, false, true}) priority.update(has_streams);
  EXPECT_EQ(set, (std::vector<int>{kLow, kUsual, kLow}));
}

TEST(LoadPriority, StaysLowWhereTheSystemDoesNotRaiseIt) {
  std::vector<int> set;
  LoadPriority priority(
      [&](int niceness) {
        if (niceness == kUsual) return false;
        set.push_back(niceness);
        return true;
      },
      kUsual);
  for (const bool has_streams : {true, false, true}) priority.update(has_streams);
  EXPECT_EQ(set, std::vector<int>{kLow}) << "it is low already when streams come again";
}

}  // namespace
}  // namespace uma::pool
