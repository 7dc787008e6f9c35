#include "base/metrics.h"

#include <gtest/gtest.h>

namespace uma {
namespace {

double percentile(const LatencyHistogram& histogram, double quantile) {
  LatencyHistogram::Counts counts{};
  histogram.add_to(counts);
  return LatencyHistogram::percentile_ms(counts, quantile);
}

TEST(LatencyHistogram, PercentilesAreWithinABucketOfTheTruth) {
  LatencyHistogram histogram;
  for (int i = 1; i <= 1000; ++i) histogram.record_ms(i);
  EXPECT_NEAR(percentile(histogram, 0.5), 500, 500 * 0.045);
  EXPECT_NEAR(percentile(histogram, 0.99), 990, 990 * 0.045);
  EXPECT_EQ(histogram.count(), 1000u);
  EXPECT_NEAR(histogram.sum_ms(), 500500, 1);
}

TEST(LatencyHistogram, TakesZeroNegativeAndHugeValues) {
  LatencyHistogram histogram;
  EXPECT_EQ(percentile(histogram, 0.5), 0);
  histogram.record_ms(0);
  histogram.record_ms(-1);
  histogram.record_ms(1e12);
  EXPECT_EQ(histogram.count(), 3u);
  EXPECT_GT(percentile(histogram, 1.0), 4e6);
}

}  // namespace
}  // namespace uma
