#include "kv/tier_policy.h"

#include <vector>

#include <gtest/gtest.h>

namespace uma::kv {
namespace {

StateView state(std::uint64_t id, std::size_t tokens, double idle_s) {
  return {.id = id, .bytes = tokens * 1000, .tokens_count = tokens, .uses = 0, .idle_s = idle_s, .is_foreign = false};
}

std::uint64_t first_to_go(const std::vector<StateView>& states, EvictionOrder order = EvictionOrder::value) {
  const StateView* least = least_valuable(states, order);
  return least == nullptr ? 0 : least->id;
}

TEST(TierPolicy, HasNothingToTakeFromNothing) {
  EXPECT_EQ(first_to_go({}), 0u);
}

TEST(TierPolicy, TakesTheLongestUnusedOfEqualOnes) {
  EXPECT_EQ(first_to_go({state(1, 500, 10), state(2, 500, 300), state(3, 500, 20)}), 2u);
}

TEST(TierPolicy, KeepsWhatTookLongerToCompute) {
  EXPECT_EQ(first_to_go({state(1, 8000, 100), state(2, 200, 100)}), 2u);
}

TEST(TierPolicy, KeepsWhatIsUsedOften) {
  StateView often = state(1, 500, 200);
  often.uses = 9;
  EXPECT_EQ(first_to_go({often, state(2, 500, 100)}), 2u);
  EXPECT_EQ(first_to_go({often, state(2, 500, 100)}, EvictionOrder::lru), 1u);
}

TEST(TierPolicy, KeepsWhatComesBackSoon) {
  StateView tool = state(1, 500, 20);
  tool.pause_s = kToolPauseS;
  const StateView chat = state(2, 500, 0);
  EXPECT_EQ(first_to_go({tool, chat}), 2u);
  tool.idle_s = 120;
  EXPECT_EQ(first_to_go({tool, chat}), 1u) << "it has not come back";
  StateView ended = state(3, 500, 0);
  ended.pause_s = kEndedPauseS;
  EXPECT_EQ(first_to_go({state(4, 500, 100), ended}), 3u);
}

TEST(TierPolicy, TakesWhatIsOfNoUseFirst) {
  StateView foreign = state(1, 8000, 1);
  foreign.is_foreign = true;
  EXPECT_EQ(first_to_go({state(2, 100, 5000), foreign}), 1u);
}

TEST(TierPolicy, TakesFromThoseWhoHaveMoreThanTheirShare) {
  StateView greedy = state(1, 8000, 1);
  greedy.is_over_share = true;
  StateView foreign = state(3, 8000, 1);
  foreign.is_foreign = true;
  EXPECT_EQ(first_to_go({state(2, 100, 5000), greedy}), 1u);
  EXPECT_EQ(first_to_go({state(2, 100, 5000), greedy}, EvictionOrder::lru), 1u);
  EXPECT_EQ(first_to_go({state(2, 100, 5000), greedy, foreign}), 3u);
}

TEST(TierPolicy, StoresWhatTakesLongToComputeUnlessManyWaitForIt) {
  EXPECT_TRUE(is_worth_the_wait(0, 5, 1)) << "nobody waits";
  EXPECT_TRUE(is_worth_the_wait(8, 5, 0)) << "nothing is known";
  EXPECT_TRUE(is_worth_the_wait(1, 2, 50));
  EXPECT_FALSE(is_worth_the_wait(8, 2, 50));
  EXPECT_TRUE(is_worth_the_wait(8, 5, 600));
  EXPECT_FALSE(is_worth_the_wait(8, 15, 600));
  EXPECT_FALSE(is_worth_the_wait(1, 20, 50));
}

}  // namespace
}  // namespace uma::kv
