#include "llm/sampling/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "base/random.h"

namespace uma::llm {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Random logits up to 0, some NaN or -infinity.
std::vector<float> some_logits(std::size_t count, double spread) {
  Random random(count);
  std::vector<float> logits(count);
  for (float& logit : logits) {
    const std::uint64_t kind = random.next_below(20);
    logit = kind == 0 ? kNan : kind == 1 ? kMinusInfinity : static_cast<float>(-spread * random.next_unit());
  }
  return logits;
}

TEST(Logits, BlockMaximaAreThoseOfABlockWithoutItsNan) {
  for (const std::size_t count : {1u, 7u, 127u, 128u, 129u, 1000u}) {
    for (const std::size_t block_size : {8u, 16u, 128u}) {
      const std::vector<float> logits = some_logits(count, 20);
      std::vector<float> maxima{5.0f};
      block_maxima(logits, block_size, maxima);
      ASSERT_EQ(maxima.size(), (count + block_size - 1) / block_size);
      for (std::size_t block = 0; block < maxima.size(); ++block) {
        float expected = kMinusInfinity;
        for (std::size_t i = block * block_size; i < std::min(count, (block + 1) * block_size); ++i) {
          if (!std::isnan(logits[i])) expected = std::max(expected, logits[i]);
        }
        EXPECT_EQ(maxima[block], expected) << count << " " << block_size << " " << block;
      }
    }
  }
}

TEST(Logits, ABlockOfNothingButNanIsMinusInfinity) {
  std::vector<float> maxima;
  block_maxima(std::vector<float>(130, kNan), 128, maxima);
  EXPECT_EQ(maxima, std::vector<float>(2, kMinusInfinity));
}

TEST(Logits, WeightIsTheExponential) {
  for (int i = 0; i < 12'900; ++i) {
    const double depth = 0.0037 * i;  // The largest depth is 47.8.
    ASSERT_NEAR(weight_at(depth) / std::exp(-depth), 1, 1e-13) << depth;
  }
  EXPECT_EQ(weight_at(0), 1);
}

TEST(Logits, WeightEndsAtADepth) {
  EXPECT_EQ(weight_at(48), 0);
  EXPECT_EQ(weight_at(1e300), 0);
  EXPECT_EQ(weight_at(std::numeric_limits<double>::infinity()), 0);
  EXPECT_EQ(weight_at(std::numeric_limits<double>::quiet_NaN()), 0);
}

TEST(Logits, SumsAreThoseOfTheWeights) {
  for (const std::size_t count : {1u, 15u, 16u, 17u, 1000u}) {
    for (const double spread : {1.0, 20.0, 200.0}) {
      const std::vector<float> logits = some_logits(count, spread);
      for (const double scale : {1.0, 2.5}) {
        double expected = 0;
        for (const float logit : logits) expected += std::isnan(logit) ? 0 : std::exp(static_cast<double>(logit - 1) * scale);
        EXPECT_NEAR(sum_of_weights(logits, 1, scale), expected, expected * 1e-12 + 1e-18)
            << count << " " << spread << " " << scale;
      }
    }
  }
}

TEST(Logits, BinsHoldTheWeightsOfTheirDepths) {
  const std::vector<float> logits = some_logits(1000, 60);
  const DepthBins bins = weights_by_depth(logits, 0);
  DepthBins expected{};
  for (const float logit : logits) {
    const double place = std::floor(-logit * static_cast<double>(kDepthBinsPerUnit) + 0.5);
    if (place < static_cast<double>(kDepthBins - 1))
      expected[static_cast<std::size_t>(place)] += std::exp(static_cast<double>(logit));
  }
  for (std::size_t i = 0; i < kDepthBins; ++i) EXPECT_NEAR(bins[i], expected[i], expected[i] * 1e-12) << i;
  const double sum = sum_of_weights(logits, 0, 1);
  EXPECT_NEAR(std::accumulate(bins.begin(), bins.end(), 0.0), sum, sum * 1e-12);
}

std::vector<float> random_row(std::uint64_t seed, double spread) {
  Random random(seed);
  std::vector<float> row(4096);
  for (float& value : row) value = static_cast<float>(5 + spread * (2 * random.next_unit() - 1));
  return row;
}

TEST(LogitsDistance, IsInUnitsOfTheirSpread) {
  for (const double spread : {0.01, 1.0, 30.0}) {
    const std::vector<float> row = random_row(1, spread);
    EXPECT_EQ(logits_distance(row, row), 0);
    EXPECT_NEAR(logits_distance(random_row(2, spread), row), std::sqrt(2.0), 0.1) << "unrelated";
    std::vector<float> near = row;
    for (std::size_t i = 0; i < near.size(); ++i) near[i] += static_cast<float>((i % 2 == 0 ? 1 : -1) * spread / 100);
    EXPECT_NEAR(logits_distance(near, row), 0.01 * std::sqrt(3.0), 1e-3);
  }
}

TEST(LogitsDistance, IsInfiniteForNumbersThatAreNotFinite) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  std::vector<float> row = random_row(1, 1);
  row[7] = kNever;
  EXPECT_EQ(logits_distance(row, row), 0) << "tokens that the model never generates";
  std::vector<float> other = row;
  other[8] = std::nanf("");
  EXPECT_TRUE(std::isinf(logits_distance(other, row)));
  EXPECT_TRUE(std::isinf(logits_distance(row, other)));
}

}  // namespace
}  // namespace uma::llm
