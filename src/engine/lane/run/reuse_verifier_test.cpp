#include "engine/lane/run/reuse_verifier.h"

#include <gtest/gtest.h>

#include "testing/fake_model.h"

namespace uma::engine {
namespace {

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

// In parts of any size, and the spare sequence is empty afterwards.
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
      verifier.begin({.state = 0, .tokens = claimed, .logits = logits});
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
