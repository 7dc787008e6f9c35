#include "engine/reuse_verifier.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "base/random.h"
#include "testing/fake_model.h"

namespace uma::engine {
namespace {

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

TEST(LogitsDistance, TellsNumbersThatAreNotFinite) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  std::vector<float> row = random_row(1, 1);
  row[7] = kNever;
  EXPECT_EQ(logits_distance(row, row), 0) << "tokens that the model never says";
  std::vector<float> other = row;
  other[8] = std::nanf("");
  EXPECT_TRUE(std::isinf(logits_distance(other, row)));
  EXPECT_TRUE(std::isinf(logits_distance(row, other)));
}

TEST(ReuseVerifier, TakesOneReuseInSoMany) {
  testing::FakeContext context({.has_spare = true});
  ReuseVerifier verifier(3, context);
  int due = 0;
  for (int i = 0; i < 9; ++i) due += verifier.takes_next() ? 1 : 0;
  EXPECT_EQ(due, 3);
  testing::FakeContext without({});
  EXPECT_FALSE(ReuseVerifier(1, without).takes_next());
  EXPECT_FALSE(ReuseVerifier(0, context).takes_next());
}

// In parts, whatever their size, and with nothing left in the spare sequence.
TEST(ReuseVerifier, ComputesTheTokensAnew) {
  for (const std::int32_t rows_max : {1, 3, 100}) {
    testing::FakeContext context({.batch_rows_max = 16, .has_spare = true});
    const std::vector<Token> tokens{1, 2, 3, 4, 5, 6, 7};
    std::vector<llm::BatchRow> rows;
    for (std::int32_t i = 0; i < 7; ++i) rows.push_back({tokens[static_cast<std::size_t>(i)], i, 2, i == 6});
    ASSERT_TRUE(context.decode(rows, nullptr));
    const std::span<const float> in_context = context.logits(6);
    const std::vector<float> logits(in_context.begin(), in_context.end());
    for (const bool is_wrong : {false, true}) {
      ReuseVerifier verifier(1, context);
      ASSERT_TRUE(verifier.takes_next());
      std::vector<Token> claimed = tokens;
      if (is_wrong) claimed[2] = 9;
      verifier.begin({.request = RequestId{1}, .state = 0, .tokens = claimed, .logits = logits});
      EXPECT_FALSE(verifier.takes_next()) << "one at a time";
      std::optional<double> distance;
      while (!distance) distance = verifier.step(rows_max).value();
      EXPECT_EQ(*distance > ReuseVerifier::kDistanceMax, is_wrong) << *distance;
      EXPECT_EQ(verifier.rows_left(), 0);
      verifier.end();
      EXPECT_EQ(context.sequence_length(context.shape().spare), 0);
    }
  }
}

}  // namespace
}  // namespace uma::engine
