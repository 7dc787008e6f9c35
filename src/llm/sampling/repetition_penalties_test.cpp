#include "llm/sampling/repetition_penalties.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "llm/media/image_tokens.h"

namespace uma::llm {
namespace {

// Token i is the i-th text.
class Words : public Vocab {
 public:
  explicit Words(std::vector<std::string> words) : words_(std::move(words)) {}
  [[nodiscard]] std::int32_t size() const override { return static_cast<std::int32_t>(words_.size()); }
  [[nodiscard]] Expected<std::vector<Token>> tokenize(std::string_view, bool) const override { return std::vector<Token>{}; }
  [[nodiscard]] std::string_view piece(Token token) const override { return words_[static_cast<std::size_t>(token)]; }
  [[nodiscard]] std::span<const OrderedPiece> ordered_pieces() const override { return {}; }
  [[nodiscard]] bool is_end_of_generation(Token) const override { return false; }
  [[nodiscard]] std::span<const Token> end_of_generation() const override { return {}; }
  [[nodiscard]] std::optional<Token> bos() const override { return std::nullopt; }
  [[nodiscard]] bool adds_space_prefix() const override { return false; }

 private:
  std::vector<std::string> words_;
};

SamplingParams dry() {
  SamplingParams params;
  params.dry_multiplier = 1;
  params.dry_base = 2;
  params.dry_allowed_length = 2;
  params.dry_sequence_breakers.emplace();
  return params;
}

// What is taken from the logit of each token after this text.
std::vector<float> penalties_after(const SamplingParams& params, const Vocab* vocab, const std::vector<Token>& text,
                                   std::size_t vocabulary) {
  RepetitionPenalties penalties(params, vocab);
  for (const Token token : text) penalties.accept(token);
  std::vector<float> logits(vocabulary, 0.0f);
  penalties.apply(logits);
  for (float& logit : logits) logit = 0 - logit;
  return logits;
}

TEST(RepetitionPenalties, SeeNothingWhenTheyAreOff) {
  EXPECT_EQ(RepetitionPenalties({}, nullptr).window(), 0U);
  SamplingParams params = dry();
  params.dry_penalty_last_n = 0;
  params.presence_penalty = 1;
  params.repeat_last_n = 0;
  EXPECT_EQ(RepetitionPenalties(params, nullptr).window(), 0U);
  params.repeat_last_n = 64;
  EXPECT_EQ(RepetitionPenalties(params, nullptr).window(), 64U);
  params.repeat_last_n = -1;
  EXPECT_EQ(RepetitionPenalties(params, nullptr).window(), RepetitionPenalties::kWindowMax);
  EXPECT_EQ(RepetitionPenalties::bytes_of({}, 1000), 0U);
  EXPECT_GT(RepetitionPenalties::bytes_of(params, 1000), 1000 * sizeof(Token));
  EXPECT_EQ(RepetitionPenalties::bytes_of(params, 1 << 20), RepetitionPenalties::bytes_of(params, 1 << 16));
}

TEST(RepetitionPenalties, TheSmallestPenaltyLeavesLogitsFinite) {
  SamplingParams params;
  params.repeat_penalty = 1e-310;
  RepetitionPenalties penalties(params, nullptr);
  for (const Token token : {0, 1, 2}) penalties.accept(token);
  constexpr float kForbidden = -std::numeric_limits<float>::infinity();
  std::vector<float> logits{5.0f, -5.0f, kForbidden, 1.0f};
  penalties.apply(logits);
  EXPECT_TRUE(std::isfinite(logits[0]));
  EXPECT_GT(logits[0], 1e30f);
  EXPECT_EQ(logits[2], kForbidden);
}

TEST(RepetitionPenalties, DryGrowsWithTheLengthOfTheRepetition) {
  EXPECT_EQ(penalties_after(dry(), nullptr, {1, 2, 3, 4, 2, 3}, 6), (std::vector<float>{0, 0, 0, 0, 1, 0}));
  EXPECT_EQ(penalties_after(dry(), nullptr, {1, 2, 3, 4, 1, 2, 3}, 6), (std::vector<float>{0, 0, 0, 0, 2, 0}));
  EXPECT_EQ(penalties_after(dry(), nullptr, {1, 2, 3, 4, 5, 3}, 6), (std::vector<float>(6, 0))) << "one token may be repeated";
  // Of several earlier occurrences the longest counts.
  EXPECT_EQ(penalties_after(dry(), nullptr, {9, 1, 2, 3, 5, 2, 3, 1, 2}, 6)[3], 1);
}

TEST(RepetitionPenalties, DrySearchesOnlyTheLastTokens) {
  SamplingParams params = dry();
  const std::vector<Token> text{1, 2, 3, 4, 5, 1, 2};
  EXPECT_EQ(penalties_after(params, nullptr, text, 6)[3], 1);
  params.dry_penalty_last_n = 7;
  EXPECT_EQ(penalties_after(params, nullptr, text, 6)[3], 1);
  params.dry_penalty_last_n = 6;
  EXPECT_EQ(penalties_after(params, nullptr, text, 6)[3], 0);
}

TEST(RepetitionPenalties, DryStopsAtBreakersOfOneOrSeveralTokens) {
  const Words words({"a", "b", "c", "\n", "st", "op"});
  SamplingParams params = dry();
  params.dry_allowed_length = 1;
  // a b c, and again a b: two tokens are repeated.
  EXPECT_EQ(penalties_after(params, &words, {0, 1, 2, 0, 1}, 6)[2], 2);
  params.dry_sequence_breakers = {"\n", "stop"};
  EXPECT_EQ(penalties_after(params, &words, {0, 3, 1, 2, 0, 3, 1}, 6)[2], 1) << "only b stands behind the line break";
  EXPECT_EQ(penalties_after(params, &words, {0, 4, 5, 1, 2, 0, 4, 5, 1}, 6)[2], 1);
  EXPECT_EQ(penalties_after(params, &words, {0, 4, 1, 2, 0, 4, 1}, 6)[2], 4) << "st alone breaks nothing";
  EXPECT_EQ(penalties_after(params, &words, {0, 1, 3, 0, 1}, 6)[3], 0) << "a breaker may always follow";
  params.dry_sequence_breakers.reset();
  EXPECT_EQ(penalties_after(params, &words, {0, 3, 1, 2, 0, 3, 1}, 6)[2], 1) << "a line break is one of the usual ones";
}

TEST(RepetitionPenalties, RowsOfImagesHaveNoText) {
  const Words words({"a", "b", "\n"});
  SamplingParams params = dry();
  params.dry_sequence_breakers = {"\n"};
  params.presence_penalty = 1;
  const Token row = kImageTokensBegin + 7;
  EXPECT_EQ(penalties_after(params, &words, {0, row, row, 0}, 3), (std::vector<float>{1, 0, 0}));
}

// The longest common suffix of the text and of each of its beginnings, by comparing all.
TEST(RepetitionPenalties, DryFindsTheSameAsComparingEverything) {
  Random random(4);
  for (int round = 0; round < 200; ++round) {
    std::vector<Token> text(1 + random.next_below(120));
    for (Token& token : text) token = static_cast<Token>(random.next_below(3));
    std::vector<float> expected(3, 0.0f);
    for (std::size_t next = 1; next < text.size(); ++next) {
      std::size_t length = 0;
      while (length < next && text[next - 1 - length] == text[text.size() - 1 - length]) ++length;
      float& penalty = expected[static_cast<std::size_t>(text[next])];
      if (length >= 2) penalty = std::max(penalty, static_cast<float>(std::pow(1.25, static_cast<double>(length - 2))));
    }
    SamplingParams params = dry();
    params.dry_base = 1.25;
    const std::vector<float> found = penalties_after(params, nullptr, text, 3);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_FLOAT_EQ(found[i], expected[i]) << "round " << round;
  }
}

TEST(RepetitionPenalties, AnEndlessRepetitionStaysFinite) {
  SamplingParams params = dry();
  params.dry_base = 100;
  params.dry_multiplier = 100;
  const std::vector<float> found = penalties_after(params, nullptr, std::vector<Token>(5000, 1), 3);
  EXPECT_TRUE(std::isfinite(found[1]) && found[1] > 1e38f);
  EXPECT_EQ(found[2], 0);
}

TEST(RepetitionPenalties, CountTheTokensOfALongTextLikeThoseOfAShortOne) {
  Random random(2);
  SamplingParams params;
  params.frequency_penalty = 1;
  params.repeat_last_n = 50;
  RepetitionPenalties penalties(params, nullptr);
  std::vector<Token> text;
  for (int i = 0; i < 1000; ++i) {
    text.push_back(static_cast<Token>(random.next_below(9)));
    penalties.accept(text.back());
    std::vector<float> logits(9, 0.0f);
    penalties.apply(logits);
    const auto last = std::span(text).last(std::min<std::size_t>(text.size(), 50));
    for (Token token = 0; token < 9; ++token) {
      ASSERT_EQ(logits[static_cast<std::size_t>(token)], -static_cast<float>(std::ranges::count(last, token)));
    }
  }
}

}  // namespace
}  // namespace uma::llm
