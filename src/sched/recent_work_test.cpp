#include "sched/recent_work.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::sched {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TimePoint at_s(std::int64_t seconds) {
  return TimePoint(std::chrono::seconds(seconds));
}

TEST(RecentWork, CountsLessTheOlderItIs) {
  RecentWork work;
  work.age(at_s(100));
  work.add("a", 1000);
  work.add("b", 500);
  work.add("a", 1000);
  work.age(at_s(110));
  EXPECT_THAT(work.tenants(), ElementsAre(Pair("a", DoubleNear(735.8, 0.1)), Pair("b", DoubleNear(183.9, 0.1))));
  work.age(at_s(200));
  EXPECT_THAT(work.tenants(), IsEmpty());
}

TEST(RecentWork, WhatWasDoneBeforeTheFirstAgeingIsNew) {
  RecentWork work;
  work.add("a", 1000);
  work.age(at_s(100));
  EXPECT_THAT(work.tenants(), ElementsAre(Pair("a", 1000.0)));
}

TEST(RecentWork, ForgetsTheTenantsWithTheLeastWork) {
  RecentWork work;
  work.age(at_s(0));
  for (std::size_t i = 0; i < 2 * RecentWork::kTenantsMax; ++i) work.add(std::to_string(i), 100 + static_cast<std::int64_t>(i));
  work.age(at_s(0));
  EXPECT_EQ(work.tenants().size(), RecentWork::kTenantsMax);
  EXPECT_FALSE(work.tenants().contains("0"));
  EXPECT_TRUE(work.tenants().contains("127"));
}

}  // namespace
}  // namespace uma::sched
