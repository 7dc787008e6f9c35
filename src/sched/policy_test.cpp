#include "sched/policy.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"

namespace uma::sched {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Sequences that come, compute one token per turn and go.
class Turns {
 public:
  Turns(PolicyOptions options, std::int32_t slots) : taker_(options, slots) {}

  void come(std::uint64_t id, int tokens) {
    left_[id] = tokens;
    came_ms_[id] = now_ms_;
  }
  // Whose turn it is now; each of them computes a token, which takes 10 ms in all.
  std::vector<std::uint64_t> tick() {
    std::vector<SequenceView> views;
    for (const auto& [id, tokens] : left_) {
      views.push_back({.id = id,
                       .index = static_cast<std::int32_t>(views.size()),
                       .pending_tokens = 1,
                       .decodes = true,
                       .waited_ms = now_ms_ - came_ms_[id]});
    }
    wait_ms = taker_.select(views, now_ms_);
    now_ms_ += wait_ms.value_or(10);
    std::vector<std::uint64_t> ids;
    for (const SequenceView& view : views) {
      ids.push_back(view.id);
      if (--left_[view.id] == 0) left_.erase(view.id);
    }
    return ids;
  }
  [[nodiscard]] bool is_done() const { return left_.empty(); }

  std::optional<double> wait_ms;

 private:
  TurnTaker taker_;
  std::map<std::uint64_t, int> left_;  // Ids in order of arrival.
  std::map<std::uint64_t, double> came_ms_;
  double now_ms_ = 1000;
};

TEST(Policy, HasANameThatIsReadBack) {
  for (const Policy policy :
       {Policy::continuous, Policy::static_batch, Policy::iterative, Policy::time_slice, Policy::sequential}) {
    EXPECT_EQ(parse_policy(policy_name(policy)), policy);
  }
  EXPECT_EQ(parse_policy("fastest"), std::nullopt);
}

TEST(Policy, ContinuousTakesEveryone) {
  Turns turns({.policy = Policy::continuous}, 8);
  turns.come(1, 2);
  EXPECT_THAT(turns.tick(), ElementsAre(1));
  turns.come(2, 2);
  EXPECT_THAT(turns.tick(), ElementsAre(1, 2));
}

TEST(Policy, SequentialTakesOneAfterTheOther) {
  Turns turns({.policy = Policy::sequential}, 8);
  turns.come(1, 2);
  turns.come(2, 1);
  turns.come(3, 1);
  EXPECT_THAT(turns.tick(), ElementsAre(1));
  EXPECT_THAT(turns.tick(), ElementsAre(1));
  EXPECT_THAT(turns.tick(), ElementsAre(2));
  EXPECT_THAT(turns.tick(), ElementsAre(3));
}

TEST(Policy, IterativeGoesRound) {
  Turns turns({.policy = Policy::iterative}, 8);
  turns.come(1, 3);
  turns.come(2, 2);
  EXPECT_THAT(turns.tick(), ElementsAre(1));
  EXPECT_THAT(turns.tick(), ElementsAre(2));
  turns.come(3, 1);
  EXPECT_THAT(turns.tick(), ElementsAre(1)) << "the one that has waited longest, not the newest";
  EXPECT_THAT(turns.tick(), ElementsAre(2));
  EXPECT_THAT(turns.tick(), ElementsAre(3));
  EXPECT_THAT(turns.tick(), ElementsAre(1));
}

TEST(Policy, ATimeSliceEndsByTimeOrWithItsSequence) {
  Turns turns({.policy = Policy::time_slice, .slice_ms = 20}, 8);
  turns.come(1, 3);
  turns.come(2, 1);
  EXPECT_THAT(turns.tick(), ElementsAre(1));
  EXPECT_THAT(turns.tick(), ElementsAre(1));
  EXPECT_THAT(turns.tick(), ElementsAre(2)) << "20 ms are over";
  EXPECT_THAT(turns.tick(), ElementsAre(1)) << "2 has ended";
  turns.come(3, 1);
  EXPECT_THAT(turns.tick(), ElementsAre(3));
}

TEST(Policy, WithoutASliceATurnLastsToTheEnd) {
  Turns turns({.policy = Policy::time_slice}, 8);
  turns.come(1, 3);
  turns.come(2, 1);
  for (int i = 0; i < 3; ++i) EXPECT_THAT(turns.tick(), ElementsAre(1));
  EXPECT_THAT(turns.tick(), ElementsAre(2));
}

TEST(Policy, AStaticBatchWaitsForCompanyAndEndsTogether) {
  Turns turns({.policy = Policy::static_batch, .static_batch_wait_ms = 20}, 8);
  turns.come(1, 2);
  EXPECT_THAT(turns.tick(), IsEmpty());
  EXPECT_EQ(turns.wait_ms, 20);
  turns.come(2, 1);
  EXPECT_THAT(turns.tick(), ElementsAre(1, 2));
  turns.come(3, 1);
  EXPECT_THAT(turns.tick(), ElementsAre(1)) << "2 has ended, 3 is not of this batch";
  EXPECT_THAT(turns.tick(), IsEmpty()) << "3 came 10 ms ago";
  EXPECT_EQ(turns.wait_ms, 10);
  EXPECT_THAT(turns.tick(), ElementsAre(3));
}

TEST(Policy, AFullStaticBatchDoesNotWait) {
  Turns turns({.policy = Policy::static_batch, .static_batch_wait_ms = 20}, 2);
  turns.come(1, 1);
  turns.come(2, 1);
  EXPECT_THAT(turns.tick(), ElementsAre(1, 2));
}

TEST(Policy, NobodyStarves) {
  for (const Policy policy :
       {Policy::continuous, Policy::static_batch, Policy::iterative, Policy::time_slice, Policy::sequential}) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      Random random(seed);
      Turns turns({.policy = policy, .static_batch_wait_ms = 15, .slice_ms = 25}, 4);
      std::uint64_t id = 0;
      int tokens = 0;
      for (int i = 0; i < 12; ++i) {
        const int some = 1 + static_cast<int>(random.next_u64() % 6);
        tokens += some;
        turns.come(++id, some);
        if (random.next_u64() % 2 == 0) (void)turns.tick();
      }
      int ticks = 0;
      while (!turns.is_done() && ticks < 200) {
        (void)turns.tick();
        ++ticks;
      }
      EXPECT_TRUE(turns.is_done()) << policy_name(policy) << " seed " << seed;
      EXPECT_LE(ticks, tokens + 24) << "every tick computes, or is one of the waits of a batch";
    }
  }
}

}  // namespace
}  // namespace uma::sched
