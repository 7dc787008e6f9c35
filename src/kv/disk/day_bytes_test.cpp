#include "kv/disk/day_bytes.h"

#include <chrono>

#include <gtest/gtest.h>

namespace uma::kv {
namespace {

using std::chrono::hours;

TEST(DayBytes, AreForgottenAfterADay) {
  DayBytes written;
  const TimePoint begin{hours(1000)};
  written.add(TenantId{"a"}, 10, begin);
  written.add(TenantId{"a"}, 20, begin + hours(5));
  EXPECT_EQ(written.total(begin + hours(23)), 30U);
  EXPECT_EQ(written.total(begin + hours(24)), 20U);
  EXPECT_EQ(written.total(begin + hours(29)), 0U);
  written.add(TenantId{"a"}, 5, begin + hours(30));
  EXPECT_EQ(written.total(begin + hours(1000)), 0U) << "nothing was asked for many days";
}

TEST(DayBytes, OneTenantLeavesTheOthersTheirShare) {
  DayBytes written;
  const TimePoint now{hours(1000)};
  written.add(TenantId{"a"}, 99, now);
  EXPECT_FALSE(written.is_full(TenantId{"a"}, 100, now)) << "alone it has all";
  written.add(TenantId{"a"}, 1, now);
  EXPECT_TRUE(written.is_full(TenantId{"a"}, 100, now));
  EXPECT_FALSE(written.is_full(TenantId{"b"}, 100, now));
  written.add(TenantId{"b"}, 49, now);
  EXPECT_FALSE(written.is_full(TenantId{"b"}, 100, now));
  written.add(TenantId{"b"}, 1, now);
  EXPECT_TRUE(written.is_full(TenantId{"b"}, 100, now));
  EXPECT_FALSE(written.is_full(TenantId{"b"}, 100, now + hours(24)));
}

}  // namespace
}  // namespace uma::kv
