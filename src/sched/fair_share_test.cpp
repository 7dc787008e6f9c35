#include "sched/fair_share.h"

#include <algorithm>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"

namespace uma::sched {
namespace {

TEST(FairShare, TheOneWithLessWorkGoesFirst) {
  FairShare share;
  const Flow a{"a", 1};
  const Flow b{"b", 1};
  share.enter(a);
  share.enter(b);
  EXPECT_EQ(share.rank(a), share.rank(b));
  share.charge(a, 10);
  EXPECT_LT(share.rank(b), share.rank(a));
}

TEST(FairShare, TenantsCountBeforeClients) {
  FairShare share;
  const Flow busy{"a", 1};
  const Flow idle_sibling{"a", 2};
  const Flow other{"b", 1};
  for (const Flow& flow : {busy, idle_sibling, other}) share.enter(flow);
  share.charge(busy, 100);
  share.charge(other, 50);
  EXPECT_LT(share.rank(other), share.rank(idle_sibling));
  EXPECT_LT(share.rank(idle_sibling), share.rank(busy));
}

TEST(FairShare, WhoComesLateNeitherOwesNorHasSavedUp) {
  FairShare share;
  const Flow old{"a", 1};
  const Flow late{"b", 1};
  share.enter(old);
  share.charge(old, 1'000'000);
  share.enter(late);
  EXPECT_EQ(share.rank(old).tenant_work, share.rank(late).tenant_work);
  share.charge(late, 5);
  share.leave(late);
  share.charge(old, 10);
  share.enter(late);  // It was gone: the five are forgotten, and so is what the other had meanwhile.
  EXPECT_EQ(share.rank(old).tenant_work, share.rank(late).tenant_work);
}

// One client keeps fifty requests waiting, others one each: the work they get stays within one request of the others'.
TEST(FairShare, ManyRequestsGetNoMoreThanOne) {
  Random random(7);
  FairShare share;
  std::vector<Flow> flows{{"greedy", 1}, {"modest", 1}, {"twins", 1}, {"twins", 2}};
  std::map<Flow, std::int64_t> served;
  for (int i = 0; i < 50; ++i) share.enter(flows[0]);
  for (std::size_t i = 1; i < flows.size(); ++i) share.enter(flows[i]);
  for (int turn = 0; turn < 10'000; ++turn) {
    const Flow& next = *std::ranges::min_element(flows, {}, [&](const Flow& flow) { return share.rank(flow); });
    const auto tokens = static_cast<std::int64_t>(1 + random.next_below(100));
    share.charge(next, tokens);
    served[next] += tokens;
  }
  EXPECT_NEAR(static_cast<double>(served[flows[0]]), static_cast<double>(served[flows[1]]), 100);
  EXPECT_NEAR(static_cast<double>(served[flows[2]] + served[flows[3]]), static_cast<double>(served[flows[1]]), 200);
  EXPECT_NEAR(static_cast<double>(served[flows[2]]), static_cast<double>(served[flows[3]]), 100);
}

}  // namespace
}  // namespace uma::sched
