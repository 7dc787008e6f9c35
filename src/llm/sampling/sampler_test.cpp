#include "llm/sampling/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "core/sampling_fields.h"

namespace uma::llm {
namespace {

std::vector<float> logits_of(std::initializer_list<double> probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

// The relative frequencies of `draws` draws.
std::map<Token, double> draw(const SamplingParams& params, const std::vector<float>& logits, int draws = 20'000) {
  Sampler sampler(params, 42, {});
  std::map<Token, double> counts;
  for (int i = 0; i < draws; ++i) {
    std::vector<float> copy = logits;
    counts[sampler.sample(copy)] += 1.0 / draws;
  }
  return counts;
}

// The definition of a draw: sorts the whole vocabulary, then cuts and draws. Without penalties and bias. Requires: at least one
// logit that is not NaN.
Token sample_by_sorting(const SamplingParams& params, const std::vector<float>& logits, Random& random) {
  struct Entry {
    float logit;
    Token token;
  };
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > -std::numeric_limits<float>::infinity()) entries.push_back({logits[i], static_cast<Token>(i)});
  }
  const bool cuts_top_k = params.top_k > 0 && static_cast<std::size_t>(params.top_k) < logits.size();
  const bool excludes = params.xtc_probability > 0 && random.next_unit() < params.xtc_probability;
  const bool cuts = cuts_top_k || params.typical_p < 1 || params.top_p < 1 || params.min_p > 0 || excludes;
  const float best = std::ranges::max(entries, {}, &Entry::logit).logit;
  if (cuts || params.temperature <= 0) std::ranges::stable_sort(entries, std::greater(), &Entry::logit);
  if (params.temperature <= 0) return entries.front().token;
  const auto weight = [&](const Entry& entry, double temperature) {
    return std::exp(static_cast<double>(entry.logit - best) / temperature);
  };
  const auto mass = [&](double temperature) {
    double sum = 0;
    for (const Entry& entry : entries) sum += weight(entry, temperature);
    return sum;
  };
  if (cuts_top_k) entries.resize(std::min(entries.size(), static_cast<std::size_t>(params.top_k)));
  if (params.typical_p < 1) {
    const double all = mass(1);
    const auto surprise = [&](const Entry& entry) { return std::log(all) + static_cast<double>(best - entry.logit); };
    double entropy = 0;
    for (const Entry& entry : entries) {
      if (weight(entry, 1) > 0) entropy += weight(entry, 1) / all * surprise(entry);
    }
    std::ranges::sort(entries, {}, [&](const Entry& entry) { return std::abs(surprise(entry) - entropy); });
    double seen = 0;
    std::size_t keep = 0;
    while (keep < entries.size() && seen <= params.typical_p) seen += weight(entries[keep++], 1) / all;
    entries.resize(keep);
    std::ranges::sort(entries, std::greater(), &Entry::logit);
  }
  if (params.top_p < 1) {
    const double wanted = params.top_p * mass(1);
    double seen = 0;
    std::size_t keep = 0;
    while (keep < entries.size() && seen < wanted) seen += weight(entries[keep++], 1);
    entries.resize(keep);
  }
  const float best_left = entries.front().logit;
  std::erase_if(entries,
                [&](const Entry& entry) { return std::exp(static_cast<double>(entry.logit - best_left)) < params.min_p; });
  if (excludes) {
    const double least = params.xtc_threshold * mass(1);
    std::size_t likely = 0;
    while (likely < entries.size() && weight(entries[likely], 1) >= least) ++likely;
    if (likely > 1) entries.erase(entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(likely - 1));
  }
  double left = random.next_unit() * mass(params.temperature);
  for (const Entry& entry : entries) {
    left -= weight(entry, params.temperature);
    if (left < 0) return entry.token;
  }
  return entries.front().token;
}

TEST(Sampler, DrawsAsIfItHadSortedTheVocabulary) {
  Random random(3);
  const auto pick = [&](auto... values) {
    const std::array choices{values...};
    return choices[random.next_below(choices.size())];
  };
  for (int round = 0; round < 3000; ++round) {
    const auto vocabulary = static_cast<std::size_t>(pick(1, 2, 50, 127, 128, 129, 500, 3000, 9000));
    const double spread = pick(0.5, 2.5, 10.0, 60.0);
    const bool has_ties = pick(0, 0, 1) == 1;
    const std::uint64_t holes = pick(2, 10, 1000);  // One logit in `holes` is NaN or -infinity.
    std::vector<float> logits(vocabulary);
    for (float& logit : logits) {
      double sum = 0;
      for (int i = 0; i < 4; ++i) sum += random.next_unit() - 0.5;
      logit = static_cast<float>(has_ties ? std::round(sum * 4) : sum * spread);
      if (random.next_below(holes) == 0) {
        logit = pick(std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity());
      }
    }
    logits[random.next_below(vocabulary)] = 0;
    SamplingParams params;
    params.temperature = pick(0.0, 0.2, 0.8, 1.0, 1.0, 2.0);
    params.top_k = pick(0, 0, 1, 5, 40, 1000, 5000);
    params.top_p = pick(1.0, 1.0, 0.1, 0.5, 0.95, 0.9999);
    params.min_p = pick(0.0, 0.0, 0.01, 0.3);
    if (!has_ties) params.typical_p = pick(1.0, 1.0, 1.0, 0.2, 0.9);
    params.xtc_probability = params.temperature > 0 ? pick(0.0, 0.0, 0.0, 0.5, 1.0) : 0.0;
    params.xtc_threshold = pick(0.001, 0.1, 0.5);
    Sampler sampler(params, 7, {});
    Random for_reference(7);
    for (int i = 0; i < 3; ++i) {
      std::vector<float> copy = logits;
      ASSERT_EQ(sampler.sample(copy), sample_by_sorting(params, logits, for_reference))
          << "round " << round << ": " << vocabulary << " logits, spread " << spread << ", ties " << has_ties << ", holes "
          << holes << ", temperature " << params.temperature << ", top_k " << params.top_k << ", top_p " << params.top_p
          << ", min_p " << params.min_p << ", typical_p " << params.typical_p << ", xtc " << params.xtc_probability << " "
          << params.xtc_threshold;
    }
  }
}

TEST(Sampler, PlusInfinityAlwaysWins) {
  for (const double top_p : {1.0, 0.9}) {
    SamplingParams params;
    params.temperature = 1;
    params.top_p = top_p;
    Sampler sampler(params, 1, {});
    std::vector<float> logits(300, 1.0f);
    logits[200] = std::numeric_limits<float>::infinity();
    EXPECT_EQ(sampler.sample(logits), 200);
  }
}

TEST(Sampler, GreedyTakesTheFirstOfTheLargest) {
  Sampler sampler({}, 1, {});
  std::vector<float> logits{0.5f, 3.0f, 3.0f, -1.0f};
  EXPECT_EQ(sampler.sample(logits), 1);
}

TEST(Sampler, NanAndMinusInfinityNeverWin) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float minus = -std::numeric_limits<float>::infinity();
  for (const double temperature : {0.0, 1.0}) {
    for (const int top_k : {0, 2}) {
      SamplingParams params;
      params.temperature = temperature;
      params.top_k = top_k;
      Sampler sampler(params, 1, {});
      std::vector<float> logits{nan, minus, 1.0f, nan, minus};
      EXPECT_EQ(sampler.sample(logits), 2) << temperature << " " << top_k;
    }
  }
}

TEST(Sampler, DrawsInProportion) {
  SamplingParams params;
  params.temperature = 1;
  const auto seen = draw(params, logits_of({0.5, 0.3, 0.2}));
  EXPECT_NEAR(seen.at(0), 0.5, 0.02);
  EXPECT_NEAR(seen.at(1), 0.3, 0.02);
  EXPECT_NEAR(seen.at(2), 0.2, 0.02);
}

TEST(Sampler, TemperatureSharpens) {
  SamplingParams params;
  params.temperature = 0.5;
  const auto seen = draw(params, logits_of({0.6, 0.4}));
  EXPECT_NEAR(seen.at(0), 0.36 / (0.36 + 0.16), 0.02);
}

TEST(Sampler, TopKKeepsTheKBestAndTheirProportions) {
  SamplingParams params;
  params.temperature = 1;
  params.top_k = 2;
  const auto seen = draw(params, logits_of({0.1, 0.4, 0.3, 0.2}));
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_NEAR(seen.at(1), 4.0 / 7, 0.02);
  EXPECT_NEAR(seen.at(2), 3.0 / 7, 0.02);
}

TEST(Sampler, TopPKeepsTheSmallestSetThatHoldsTheMass) {
  SamplingParams params;
  params.temperature = 1;
  params.top_p = 0.6;
  EXPECT_EQ(draw(params, logits_of({0.5, 0.3, 0.2})).size(), 2u);
  params.top_p = 0.4;
  EXPECT_EQ(draw(params, logits_of({0.5, 0.3, 0.2})).size(), 1u);
  params.top_p = 0;
  EXPECT_EQ(draw(params, logits_of({0.3, 0.5, 0.2})).size(), 1u) << "0 keeps the most likely token";
}

TEST(Sampler, TopPCountsTheTailOfAFlatDistribution) {
  std::vector<float> logits(5000, 0.0f);
  logits[7] = 5.0f;  // e^5 = 148 of 5147.
  SamplingParams params;
  params.temperature = 1;
  params.top_p = 0.5;
  const auto seen = draw(params, logits, 2000);
  EXPECT_NEAR(seen.at(7), 148.4 / (0.5 * 5147.4), 0.03);
}

TEST(Sampler, MinPDropsWhatIsFarBelowTheBest) {
  SamplingParams params;
  params.temperature = 1;
  params.min_p = 0.5;
  EXPECT_EQ(draw(params, logits_of({0.5, 0.3, 0.2})).size(), 2u);
}

TEST(Sampler, XtcRemovesTheTopChoicesButTheLeastLikelyOfThem) {
  SamplingParams params;
  params.temperature = 1;
  params.xtc_probability = 1;
  params.xtc_threshold = 0.2;
  const auto seen = draw(params, logits_of({0.4, 0.3, 0.2001, 0.0999}));
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_NEAR(seen.at(2), 2.0 / 3, 0.02);
  params.xtc_probability = 0.5;
  EXPECT_NEAR(draw(params, logits_of({0.4, 0.3, 0.2001, 0.0999})).at(0), 0.2, 0.02);
  params.xtc_threshold = 0.51;
  EXPECT_NEAR(draw(params, logits_of({0.6, 0.4})).at(0), 0.6, 0.02);
}

// The two versions of mirostat by their definition: one draw, and the new limit `mu`.
Token mirostat_by_definition(const SamplingParams& params, const std::vector<float>& logits, double& mu, Random& random) {
  std::vector<std::pair<double, Token>> entries;
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    entries.emplace_back(std::exp(static_cast<double>(logits[i]) / params.temperature), static_cast<Token>(i));
    total += entries.back().first;
  }
  std::ranges::stable_sort(entries, std::greater(), &std::pair<double, Token>::first);
  std::size_t kept = 0;
  if (params.mirostat == 2) {
    while (kept < entries.size() && -std::log2(entries[kept].first / total) <= mu) ++kept;
  } else {
    double products = 0, squares = 0;
    for (std::size_t i = 0; i < 99 && i + 1 < entries.size(); ++i) {
      const double rank = std::log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
      products += rank * std::log(entries[i].first / entries[i + 1].first);
      squares += rank * rank;
    }
    const double s = products / squares;
    const auto size = static_cast<double>(logits.size());
    kept = static_cast<std::size_t>(
        std::clamp(std::pow((s - 1) * std::pow(2, mu) / (1 - std::pow(size, 1 - s)), 1 / s), 1.0, size));
  }
  entries.resize(std::max<std::size_t>(kept, 1));
  double mass = 0;
  for (const auto& [weight, token] : entries) mass += weight;
  double left = random.next_unit() * mass;
  for (const auto& [weight, token] : entries) {
    left -= weight;
    if (left >= 0) continue;
    mu -= params.mirostat_eta * (-std::log2(weight / mass) - params.mirostat_tau);
    return token;
  }
  return kNoToken;
}

TEST(Sampler, MirostatFollowsItsDefinition) {
  Random random(11);
  for (const int version : {1, 2}) {
    for (const double temperature : {0.7, 1.0, 1.5}) {
      SamplingParams params;
      params.temperature = temperature;
      params.mirostat = version;
      params.mirostat_tau = 3;
      params.mirostat_eta = 0.3;
      params.top_k = 1;  // Has no effect beside mirostat.
      Sampler sampler(params, 21, {});
      Random for_reference(21);
      double mu = 6;
      for (int i = 0; i < 300; ++i) {
        std::vector<float> logits(800);
        for (float& logit : logits) logit = static_cast<float>(random.next_unit() * 9);
        const Token expected = mirostat_by_definition(params, logits, mu, for_reference);
        ASSERT_EQ(sampler.sample(logits), expected) << "version " << version << ", token " << i;
      }
    }
  }
}

TEST(Sampler, MirostatKeepsItsStateWhenDraftsAreVerified) {
  SamplingParams params;
  params.temperature = 1;
  params.mirostat = 2;
  params.mirostat_tau = 1;
  params.mirostat_eta = 1;
  Sampler sampler(params, 5, {});
  // Of two equal tokens, each is a surprise of one bit, which is what is wanted: all of the logits stay possible.
  for (int i = 0; i < 50; ++i) {
    std::vector<float> logits(2, 0.0f);
    EXPECT_NE(sampler.verify(logits, 0, {{0, 1.0}}), kNoToken);
  }
  // A certain token is no surprise, so the limit rises by one bit with each, beginning at two.
  const auto count = [&] {
    std::vector<float> logits(64, 0.0f);
    Distribution chances;
    sampler.distribution(logits, chances);
    return chances.size();
  };
  EXPECT_EQ(count(), 1u) << "six bits are more than the limit";
  for (int i = 0; i < 5; ++i) {
    std::vector<float> logits{0.0f, -100.0f};
    EXPECT_EQ(sampler.verify(logits, 0, {{0, 1.0}}), 0);
  }
  EXPECT_EQ(count(), 64u);
}

TEST(Sampler, GreedyIgnoresTheOtherSamplers) {
  SamplingParams params;
  params.mirostat = 2;
  params.typical_p = 0.1;
  params.xtc_probability = 1;
  params.xtc_threshold = 0;
  Sampler sampler(params, 1, {});
  std::vector<float> logits{0.5f, 3.0f, 2.9f, -1.0f};
  EXPECT_EQ(sampler.sample(logits), 1);
}

TEST(Sampler, TheSmallestTemperatureIsGreedy) {
  for (const double temperature : {std::numeric_limits<double>::denorm_min(), 1e-310, 1e-307}) {
    for (const int mirostat : {0, 1, 2}) {
      SamplingParams params;
      params.temperature = temperature;
      params.mirostat = mirostat;
      Sampler sampler(params, 1, {});
      EXPECT_EQ(sampler.is_greedy(), temperature < 1e-308);
      std::vector<float> logits{0.5f, 3.0f, 2.9f, -1.0f};
      EXPECT_EQ(sampler.sample(logits), 1) << temperature;
      Distribution chances;
      sampler.distribution(logits, chances);
      ASSERT_EQ(chances.size(), 1u) << temperature;
      EXPECT_EQ(chances.front().token, 1);
      EXPECT_EQ(sampler.verify(logits, 2, {{2, 1.0}}), 1);
    }
  }
}

// Every setting at the ends of its range, as requests may have it.
TEST(Sampler, AlwaysHasADistributionToVerifyDraftsWith) {
  constexpr double kDenormal = 1e-310;
  std::vector<SamplingParams> all;
  for (const double temperature : {1e-307, 0.001, 1.0, 100.0}) {
    SamplingParams params;
    params.temperature = temperature;
    all.push_back(params);
    for (const SamplingFieldInfo& field : sampling_fields()) {
      if (field.field == SamplingField::temperature) continue;
      for (const double value : {field.low, field.high, kDenormal, 0.5}) {
        if (!field.accepts(value)) continue;
        SamplingParams changed = params;
        set_value(changed, field.field, value);
        if (field.field == SamplingField::xtc_threshold) changed.xtc_probability = 1;
        if (field.field == SamplingField::dry_base) changed.dry_multiplier = kDenormal;
        all.push_back(changed);
      }
    }
    params.xtc_probability = 1;
    params.typical_p = kDenormal;
    params.logit_bias = {{1, -std::numeric_limits<float>::infinity()}, {3, 100.0f}};
    all.push_back(params);
  }
  Random random(3);
  for (const SamplingParams& params : all) {
    Sampler sampler(params, 7, {});
    Sampler drafting = sampler.drafting(8);
    for (int i = 0; i < 20; ++i) {
      std::vector<float> logits(300);
      for (float& logit : logits) logit = static_cast<float>(random.next_unit() * 40 - 20);
      std::vector<float> of_draft(logits);
      Distribution draft;
      drafting.distribution(of_draft, draft);
      ASSERT_FALSE(draft.empty());
      const Token drafted = uma::llm::draw(draft, random);
      const Token token = sampler.verify(logits, drafted, draft);
      ASSERT_GE(token, 0);
      for (const float logit : logits) ASSERT_FALSE(std::isnan(logit) || logit == std::numeric_limits<float>::infinity());
      sampler.accept(token);
      drafting.accept(drafted);
    }
  }
}

TEST(Sampler, SameSeedSameTokens) {
  SamplingParams params;
  params.temperature = 1;
  const std::vector<float> logits = logits_of({0.25, 0.25, 0.25, 0.25});
  Sampler a(params, 9, {});
  Sampler b(params, 9, {});
  Sampler c(params, 10, {});
  int differ = 0;
  for (int i = 0; i < 100; ++i) {
    std::vector<float> for_a = logits, for_b = logits, for_c = logits;
    const Token token = a.sample(for_a);
    EXPECT_EQ(token, b.sample(for_b));
    differ += token != c.sample(for_c) ? 1 : 0;
  }
  EXPECT_GT(differ, 30);
}

TEST(Sampler, BiasAndBansMoveOrForbidTokens) {
  SamplingParams params;
  params.logit_bias = {{0, 10.0f}, {999, 5.0f}, {-1, 5.0f}};
  Sampler biased(params, 1, {});
  std::vector<float> logits{0, 5, 1};
  EXPECT_EQ(biased.sample(logits), 0);
  const std::vector<Token> banned{1, 77};
  Sampler with_ban({}, 1, banned);
  logits = {0, 5, 1};
  EXPECT_EQ(with_ban.sample(logits), 2);
}

TEST(Sampler, PenaltiesLowerRepeatedTokens) {
  SamplingParams repeat;
  repeat.repeat_penalty = 2;
  Sampler repeating(repeat, 1, {});
  repeating.accept(1);
  std::vector<float> logits{3.0f, 5.0f, -1.0f};
  EXPECT_EQ(repeating.sample(logits), 0);
  EXPECT_FLOAT_EQ(logits[1], 2.5f);

  SamplingParams frequency;
  frequency.frequency_penalty = 1;
  frequency.presence_penalty = 0.5;
  Sampler counting(frequency, 1, {});
  for (int i = 0; i < 3; ++i) counting.accept(1);
  logits = {0, 5, 0};
  (void)counting.sample(logits);
  EXPECT_FLOAT_EQ(logits[1], 1.5f);
}

TEST(Sampler, ForgetsWhatIsOlderThan64Tokens) {
  SamplingParams params;
  params.presence_penalty = 2;
  Sampler sampler(params, 1, {});
  sampler.accept(1);
  for (int i = 0; i < 64; ++i) sampler.accept(2);
  std::vector<float> logits{0, 5, 5};
  (void)sampler.sample(logits);
  EXPECT_FLOAT_EQ(logits[1], 5);
  EXPECT_FLOAT_EQ(logits[2], 3);
}

}  // namespace
}  // namespace uma::llm
