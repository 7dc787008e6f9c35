// Chi-square tests of the rule that verifies draft tokens: the result must have the distribution of the verifying model,
// however wrong the draft model is. Wrong rules are tested as well, to show that the bound detects them.
#include "llm/sampling/distribution.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>

#include <gtest/gtest.h>

#include "llm/sampling/sampler.h"

namespace uma::llm {
namespace {

constexpr int kDraws = 40'000;

using Rule = std::function<Token(const Distribution& wanted, const Distribution& draft, Token drafted, Random& random)>;

std::map<Token, int> counts_of(const Rule& rule, const Distribution& wanted, const Distribution& draft, std::uint64_t seed) {
  Random drafting(seed);
  Random verifying(~seed);
  std::map<Token, int> counts;
  for (int i = 0; i < kDraws; ++i) ++counts[rule(wanted, draft, draw(draft, drafting), verifying)];
  return counts;
}

// Pearson's statistic of the counts, divided by a value that one correct sample in about 20,000 exceeds (Wilson, Hilferty
// 1931): above 1 the counts do not have this distribution. An impossible token counts as infinitely wrong.
double misfit(const std::map<Token, int>& counts, const Distribution& expected) {
  int total = 0;
  for (const auto& [token, count] : counts) {
    if (chance_of(expected, token) <= 0) return std::numeric_limits<double>::infinity();
    total += count;
  }
  double sum = 0;
  for (const auto& [token, chance] : expected) {
    const double mean = chance * total;
    const auto found = counts.find(token);
    sum += std::pow((found == counts.end() ? 0 : found->second) - mean, 2) / mean;
  }
  const auto freedom = static_cast<double>(std::max<std::size_t>(1, expected.size() - 1));
  constexpr double kNormalQuantile = 3.9;
  const double scale = 2 / (9 * freedom);
  return sum / (freedom * std::pow(1 - scale + kNormalQuantile * std::sqrt(scale), 3));
}

// Random tokens, each with a chance that no sample of this size can miss.
Distribution random_distribution(Random& random, Token tokens) {
  Distribution made;
  double total = 0;
  for (Token token = 0; token < tokens; ++token) {
    if (random.next_below(3) == 0) continue;
    made.push_back({token, 0.05 + random.next_unit()});
    total += made.back().chance;
  }
  if (made.empty()) made.push_back({static_cast<Token>(random.next_below(static_cast<std::uint64_t>(tokens))), total = 1});
  for (TokenChance& entry : made) entry.chance /= total;
  return made;
}

const Distribution kWanted{{1, 0.5}, {2, 0.3}, {5, 0.15}, {7, 0.05}};
const Distribution kDraft{{0, 0.2}, {1, 0.2}, {5, 0.5}, {7, 0.1}};

TEST(Distribution, KnowsTheChanceOfEachToken) {
  EXPECT_EQ(chance_of(kWanted, 2), 0.3);
  EXPECT_EQ(chance_of(kWanted, 3), 0);
  EXPECT_EQ(chance_of(kWanted, 99), 0);
}

TEST(Distribution, DrawsEachTokenAsOftenAsItsChanceSays) {
  Random random(1);
  std::map<Token, int> counts;
  for (int i = 0; i < kDraws; ++i) ++counts[draw(kWanted, random)];
  EXPECT_LT(misfit(counts, kWanted), 1);
}

TEST(VerifyDrafted, GivesWhatTheModelWantsWhateverWasDrafted) {
  Random random(2);
  for (std::uint64_t round = 0; round < 40; ++round) {
    const Distribution wanted = random_distribution(random, 8);
    const Distribution draft = random_distribution(random, 8);
    EXPECT_LT(misfit(counts_of(verify_drafted, wanted, draft, round), wanted), 1) << "round " << round;
  }
}

TEST(VerifyDrafted, AWrongRuleIsSeen) {
  const Rule always = [](const Distribution&, const Distribution&, Token drafted, Random&) { return drafted; };
  const Rule from_all = [](const Distribution& wanted, const Distribution& draft, Token drafted, Random& random) {
    const bool accepts = random.next_unit() * chance_of(draft, drafted) < chance_of(wanted, drafted);
    return accepts ? drafted : uma::llm::draw(wanted, random);
  };
  const Rule by_wanted_alone = [](const Distribution& wanted, const Distribution& draft, Token drafted, Random& random) {
    return random.next_unit() < chance_of(wanted, drafted) ? drafted : verify_drafted(wanted, draft, drafted, random);
  };
  EXPECT_LT(misfit(counts_of(verify_drafted, kWanted, kDraft, 3), kWanted), 1);
  EXPECT_GT(misfit(counts_of(always, kWanted, kDraft, 3), kWanted), 5);
  EXPECT_GT(misfit(counts_of(from_all, kWanted, kDraft, 3), kWanted), 5);
  EXPECT_GT(misfit(counts_of(by_wanted_alone, kWanted, kDraft, 3), kWanted), 5);
}

TEST(VerifyDrafted, AcceptsAsOftenAsTheTwoOverlap) {
  Random drafting(4);
  Random verifying(5);
  int accepted = 0;
  for (int i = 0; i < kDraws; ++i) {
    const Token drafted = draw(kDraft, drafting);
    accepted += verify_drafted(kWanted, kDraft, drafted, verifying) == drafted ? 1 : 0;
  }
  constexpr double kOverlap = 0.2 + 0.15 + 0.05;  // The sum of min(wanted, draft).
  EXPECT_NEAR(accepted, kDraws * kOverlap, 4 * std::sqrt(kDraws * kOverlap * (1 - kOverlap)));
}

TEST(VerifyDrafted, TheSameDistributionIsAlwaysAccepted) {
  Random random(6);
  for (int i = 0; i < 10'000; ++i) {
    const Token drafted = draw(kWanted, random);
    EXPECT_EQ(verify_drafted(kWanted, kWanted, drafted, random), drafted);
  }
}

TEST(VerifyDrafted, OneTokenIsTakenOrTheOtherOne) {
  Random random(7);
  EXPECT_EQ(verify_drafted({{3, 1}}, {{3, 1}}, 3, random), 3);
  EXPECT_EQ(verify_drafted({{3, 1}}, {{4, 1}}, 4, random), 3);
}

// --- The sampler's part

std::vector<float> random_logits(Random& random, std::size_t count) {
  std::vector<float> logits(count);
  for (float& logit : logits) logit = static_cast<float>(random.next_unit() * 5);
  return logits;
}

// Parameters with every kind of cut, and with bias and penalties.
std::vector<SamplingParams> kinds_of_sampling() {
  std::vector<SamplingParams> made(11);
  for (SamplingParams& params : made) params.temperature = 0.8;
  made[1].top_k = 5;
  made[2].top_p = 0.7;
  made[3].min_p = 0.2;
  made[4].repeat_penalty = 1.5;
  made[4].frequency_penalty = 0.5;
  made[5].logit_bias = {{2, 4.0f}, {3, -std::numeric_limits<float>::infinity()}};
  made[6].top_k = 9;
  made[6].top_p = 0.9;
  made[6].min_p = 0.1;
  made[6].temperature = 1.7;
  made[7].typical_p = 0.6;
  made[8].xtc_probability = 1;
  made[8].xtc_threshold = 0.05;
  made[8].dry_multiplier = 1;
  made[9].mirostat = 1;
  made[10].mirostat = 2;
  made[9].mirostat_tau = made[10].mirostat_tau = 1.5;
  made[9].mirostat_eta = made[10].mirostat_eta = 0;  // Else every draw changes the distribution of the next.
  return made;
}

TEST(SamplerDistribution, IsWhatSampleDrawsFrom) {
  Random random(8);
  for (const SamplingParams& params : kinds_of_sampling()) {
    const std::vector<float> logits = random_logits(random, 20);
    Sampler sampler(params, 9, {});
    for (const Token token : {1, 2, 2, 4}) sampler.accept(token);
    Distribution expected;
    std::vector<float> copy = logits;
    sampler.distribution(copy, expected);
    std::map<Token, int> counts;
    for (int i = 0; i < kDraws; ++i) {
      copy = logits;
      ++counts[sampler.sample(copy)];
    }
    EXPECT_LT(misfit(counts, expected), 1);
    EXPECT_TRUE(std::ranges::is_sorted(expected, {}, &TokenChance::token));
  }
}

TEST(SamplerDistribution, GreedyIsOneToken) {
  Sampler sampler({}, 1, {});
  std::vector<float> logits{1, 3, 2};
  Distribution chances;
  sampler.distribution(logits, chances);
  ASSERT_EQ(chances.size(), 1u);
  EXPECT_EQ(chances.front().token, 1);
  EXPECT_EQ(chances.front().chance, 1);
}

TEST(SamplerVerify, XtcActsByChanceWhateverTheDraftModelSays) {
  Random random(13);
  const std::vector<float> logits = random_logits(random, 8);
  SamplingParams params;
  params.temperature = 1;
  params.xtc_threshold = 0.1;
  // The mean of the distributions with and without XTC.
  std::map<Token, double> chances;
  for (const double probability : {0.0, 1.0}) {
    params.xtc_probability = probability;
    Distribution one;
    std::vector<float> copy = logits;
    Sampler(params, 1, {}).distribution(copy, one);
    for (const auto& [token, chance] : one) chances[token] += chance / 2;
  }
  Distribution expected;
  for (const auto& [token, chance] : chances) expected.push_back({token, chance});
  params.xtc_probability = 0.5;
  Sampler sampler(params, 14, {});
  Sampler drafter = sampler.drafting(2);
  Random drafting(15);
  std::map<Token, int> counts;
  for (int i = 0; i < kDraws; ++i) {
    Distribution draft;
    std::vector<float> copy = random_logits(random, 8);
    drafter.distribution(copy, draft);
    copy = logits;
    ++counts[sampler.verify(copy, draw(draft, drafting), draft)];
  }
  EXPECT_LT(misfit(counts, expected), 1);
}

TEST(SamplerVerify, DrawsAsSampleDoesWhateverTheDraftModelSays) {
  Random random(10);
  for (const SamplingParams& params : kinds_of_sampling()) {
    const std::vector<float> logits = random_logits(random, 200);
    const std::vector<float> draft_logits = random_logits(random, 200);
    Sampler sampler(params, 11, {});
    for (const Token token : {1, 2, 2, 4}) sampler.accept(token);
    Distribution expected;
    std::vector<float> copy = logits;
    sampler.distribution(copy, expected);
    // A few dozen classes, because single tokens are too rare.
    const auto by_class = [](Token token) { return token % 25; };
    Distribution classes;
    for (Token c = 0; c < 25; ++c) {
      double chance = 0;
      for (const TokenChance& entry : expected) chance += by_class(entry.token) == c ? entry.chance : 0;
      if (chance > 0) classes.push_back({c, chance});
    }
    Distribution draft;
    copy = draft_logits;
    sampler.drafting(1).distribution(copy, draft);
    EXPECT_LE(draft.size(), static_cast<std::size_t>(Sampler::kDraftCandidates));
    Random drafting(12);
    std::map<Token, int> counts;
    for (int i = 0; i < kDraws; ++i) {
      copy = logits;
      ++counts[by_class(sampler.verify(copy, draw(draft, drafting), draft))];
    }
    EXPECT_LT(misfit(counts, classes), 1);
  }
}

}  // namespace
}  // namespace uma::llm
