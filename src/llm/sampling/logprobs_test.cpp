#include "llm/sampling/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"

namespace uma::llm {
namespace {

using ::testing::ElementsAre;

constexpr Token kControl = 256;

// One token for each byte, and a control token.
class ByteVocab final : public Vocab {
 public:
  ByteVocab() {
    for (int i = 0; i < 256; ++i) bytes_ += static_cast<char>(i);
  }
  [[nodiscard]] std::int32_t size() const override { return kControl + 1; }
  [[nodiscard]] Expected<std::vector<Token>> tokenize(std::string_view, bool) const override { return std::vector<Token>(); }
  [[nodiscard]] std::string_view piece(Token token) const override {
    return token == kControl ? std::string_view() : std::string_view(bytes_).substr(static_cast<std::size_t>(token), 1);
  }
  [[nodiscard]] std::span<const OrderedPiece> ordered_pieces() const override { return {}; }
  [[nodiscard]] bool is_end_of_generation(Token) const override { return false; }
  [[nodiscard]] std::span<const Token> end_of_generation() const override { return {}; }
  [[nodiscard]] std::optional<Token> bos() const override { return std::nullopt; }
  [[nodiscard]] bool adds_space_prefix() const override { return false; }

 private:
  std::string bytes_;
};

const ByteVocab kByteVocab;

std::vector<Token> top_tokens(const TokenLogprobs& place) {
  std::vector<Token> tokens;
  for (const TokenLogprob& token : place.top) tokens.push_back(token.token);
  return tokens;
}

// The logarithm of the softmax by its definition, with more digits.
double by_definition(const std::vector<float>& logits, Token token) {
  const float largest = *std::ranges::max_element(logits);
  long double mass = 0;
  for (const float logit : logits) mass += std::exp(static_cast<long double>(logit) - largest);
  return static_cast<double>(static_cast<long double>(logits[static_cast<std::size_t>(token)]) - largest - std::log(mass));
}

TEST(LogprobsOf, AreThoseOfTheSoftmax) {
  Random random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> logits(static_cast<std::size_t>(kByteVocab.size()));
    const double spread = std::pow(10.0, random.next_unit() * 4 - 2);
    const double precision = 1e-7 * std::max(1.0, spread);  // Depths are differences of floats.
    for (float& logit : logits) logit = static_cast<float>((random.next_unit() - 0.5) * spread);
    const auto chosen = static_cast<Token>(random.next_below(logits.size()));
    const TokenLogprobs place = logprobs_of(logits, chosen, 20, kByteVocab);
    EXPECT_EQ(place.chosen.token, chosen);
    EXPECT_NEAR(place.chosen.logprob, by_definition(logits, chosen), precision);
    ASSERT_EQ(place.top.size(), 20U);
    std::vector<Token> sorted(logits.size());
    for (std::size_t i = 0; i < sorted.size(); ++i) sorted[i] = static_cast<Token>(i);
    std::ranges::stable_sort(sorted, std::greater(), [&](Token token) { return logits[static_cast<std::size_t>(token)]; });
    sorted.resize(20);
    EXPECT_EQ(top_tokens(place), sorted);
    for (const TokenLogprob& token : place.top) {
      EXPECT_NEAR(token.logprob, by_definition(logits, token.token), precision);
    }
  }
}

TEST(LogprobsOf, EquallyLikelyTokensAreSortedById) {
  std::vector<float> logits(10, 0.0f);
  logits[7] = 1;
  EXPECT_THAT(top_tokens(logprobs_of(logits, 3, 3, kByteVocab)), ElementsAre(7, 0, 1));
  EXPECT_THAT(top_tokens(logprobs_of(logits, 3, 0, kByteVocab)), ElementsAre());
  EXPECT_EQ(logprobs_of(logits, 3, 20, kByteVocab).top.size(), 10U) << "there are no more";
}

TEST(LogprobsOf, HaveTheTextOfTheirTokens) {
  std::vector<float> logits(static_cast<std::size_t>(kByteVocab.size()), 0.0f);
  logits['x'] = 5;
  logits[static_cast<std::size_t>(kControl)] = 4;
  const TokenLogprobs place = logprobs_of(logits, 0xc3, 2, kByteVocab);
  EXPECT_EQ(place.chosen.bytes, "\xc3");
  EXPECT_EQ(place.top[0].bytes, "x");
  EXPECT_EQ(place.top[1].bytes, "") << "a control token";
}

TEST(LogprobsOf, WhatCannotComeIsBounded) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> logits = {0, -infinity, std::numeric_limits<float>::quiet_NaN(), -1e30f};
  for (const Token token : {1, 2, 3}) EXPECT_EQ(logprobs_of(logits, token, 1, kByteVocab).chosen.logprob, kLogprobMin);
  EXPECT_EQ(logprobs_of(logits, 0, 1, kByteVocab).chosen.logprob, 0);
  std::ranges::fill(logits, -infinity);
  EXPECT_EQ(logprobs_of(logits, 0, 1, kByteVocab).chosen.logprob, kLogprobMin);
  std::ranges::fill(logits, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(logprobs_of(logits, 0, 1, kByteVocab).chosen.logprob, kLogprobMin);
}

}  // namespace
}  // namespace uma::llm
