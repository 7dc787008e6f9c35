#include "llm/sampling/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <numeric>

#include "base/check.h"
#include "llm/sampling/logits.h"

namespace uma::llm {
namespace {

constexpr auto kByLogitDescending = [](const auto& a, const auto& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
};

// Block size of the maxima. A compromise: larger blocks are fewer to rank, smaller blocks leave fewer logits to read again.
constexpr std::size_t kLogitBlock = 128;

// Grows as the logit falls; 0 and -0 have the same key.
std::uint32_t descending_key(float logit) {
  const auto bits = std::bit_cast<std::uint32_t>(logit + 0.0f);
  return (bits >> 31) != 0 ? bits : bits ^ 0x7fffffff;
}

}  // namespace

Sampler::Sampler(const SamplingParams& params, std::uint64_t seed, std::span<const Token> banned, const Vocab* vocab)
    : params_(params),
      banned_(banned.begin(), banned.end()),
      random_(seed),
      penalties_(params, vocab),
      mirostat_mu_(2 * params.mirostat_tau) {
  // Logits are divided by the temperature, by way of its reciprocal.
  if (!std::isfinite(1 / params_.temperature)) params_.temperature = 0;
}

void Sampler::constrain(std::unique_ptr<TokenConstraint> constraint) {
  constexpr float kBan = -100;  // Bias with which OpenAI's clients ban a token.
  earlier_work_ = grammar_work();
  constraint_ = std::move(constraint);
  if (!constraint_) return;
  for (const Token token : banned_) constraint_->exclude(token);
  for (const auto& [token, bias] : params_.logit_bias) {
    if (bias <= kBan) constraint_->exclude(token);
  }
}

void Sampler::accept(Token token) {
  penalties_.accept(token);
  if (constraint_) constraint_->accept(token);
}

void Sampler::adjust(std::span<float> logits) {
  const auto in_vocabulary = [&](Token token) { return token >= 0 && static_cast<std::size_t>(token) < logits.size(); };
  for (const auto& [token, bias] : params_.logit_bias) {
    if (in_vocabulary(token)) logits[static_cast<std::size_t>(token)] += bias;
  }
  for (const Token token : banned_) {
    if (in_vocabulary(token)) logits[static_cast<std::size_t>(token)] = kNegativeInfinity;
  }
  penalties_.apply(logits);
}

std::size_t Sampler::index_of(std::span<const float> logits, float best) const {
  const auto block = static_cast<std::size_t>(std::ranges::find(maxima_, best) - maxima_.begin());
  const auto from = logits.begin() + static_cast<std::ptrdiff_t>(block * kLogitBlock);
  const auto found = std::find(from, logits.end(), best);
  // Not found if all logits are NaN.
  return found == logits.end() ? 0 : static_cast<std::size_t>(found - logits.begin());
}

void Sampler::select_from(std::span<const float> logits, float threshold) {
  candidates_.clear();
  for (std::size_t block = 0; block < maxima_.size(); ++block) {
    if (maxima_[block] < threshold) continue;
    const std::size_t first = block * kLogitBlock;
    const std::size_t last = std::min(first + kLogitBlock, logits.size());
    // Every logit is written, and only the index moves conditionally, because a branch would be mispredicted too often on flat
    // logits.
    std::size_t count = candidates_.size();
    candidates_.resize(count + last - first);
    for (std::size_t i = first; i < last; ++i) {
      candidates_[count] = {logits[i], static_cast<Token>(i)};
      count += logits[i] >= threshold ? 1 : 0;
    }
    candidates_.resize(count);
  }
}

void Sampler::select_top_k(std::span<const float> logits, std::size_t k) {
  // The k-th largest maximum is a lower bound of the k-th largest logit, because k blocks have a logit of at least this size.
  // If k is close to the number of blocks, the bound is bad; smaller blocks improve it.
  constexpr std::size_t kSmallBlock = 16;
  if (k <= maxima_.size() / 4) {
    ranked_maxima_ = maxima_;
  } else {
    block_maxima(logits, kSmallBlock, ranked_maxima_);
  }
  float threshold = std::numeric_limits<float>::lowest();
  if (k <= ranked_maxima_.size()) {
    const auto kth = ranked_maxima_.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::ranges::nth_element(ranked_maxima_, kth, std::greater());
    threshold = std::max(threshold, *kth);
  }
  select_from(logits, threshold);
}

double Sampler::select_top_p(std::span<const float> logits, float best) {
  const DepthBins weights = weights_by_depth(logits, best);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double seen = 0;
  std::size_t bins = 0;
  while (bins < kDepthBins && seen < params_.top_p * total) seen += weights[bins++];
  select_from(logits, best - static_cast<float>(bins) / static_cast<float>(kDepthBinsPerUnit));
  return total;
}

void Sampler::sort_candidates() {
  constexpr std::size_t kComparingMax = 1000;
  if (candidates_.size() <= kComparingMax) {
    std::ranges::sort(candidates_, kByLogitDescending);
    return;
  }
  // A radix sort by 11 bits at a time from the lowest, each pass stable, so that equal logits stay in order of their tokens.
  constexpr int kDigitBits = 11;
  constexpr std::uint32_t kDigits = 1u << kDigitBits;
  sorted_.resize(candidates_.size());
  for (int shift = 0; shift < 32; shift += kDigitBits) {
    const auto digit = [&](const Candidate& candidate) { return (descending_key(candidate.logit) >> shift) % kDigits; };
    std::array<std::uint32_t, kDigits> places{};
    for (const Candidate& candidate : candidates_) ++places[digit(candidate)];
    std::exclusive_scan(places.begin(), places.end(), places.begin(), 0u);
    for (const Candidate& candidate : candidates_) sorted_[places[digit(candidate)]++] = candidate;
    candidates_.swap(sorted_);
  }
}

double Sampler::mass_of_candidates() const {
  double mass = 0;
  for (const Candidate& candidate : candidates_)
    mass += weight_at(static_cast<double>(candidates_.front().logit - candidate.logit));
  return mass;
}

void Sampler::cut_top_p(double total) {
  const float best = candidates_.front().logit;
  double seen = 0;
  std::size_t keep = 0;
  while (keep < candidates_.size() && seen < params_.top_p * total) {
    seen += weight_at(static_cast<double>(best - candidates_[keep++].logit));
  }
  candidates_.resize(std::max<std::size_t>(1, keep));
}

void Sampler::cut_min_p() {
  const float threshold = candidates_.front().logit + static_cast<float>(std::log(params_.min_p));
  std::size_t keep = 1;
  while (keep < candidates_.size() && candidates_[keep].logit >= threshold) ++keep;
  candidates_.resize(keep);
}

void Sampler::cut_typical_p() {
  // The surprise of a token is its depth plus a constant, so the distances from the mean are those of the depths.
  const float best = candidates_.front().logit;
  const auto depth = [&](std::size_t i) { return static_cast<double>(best - candidates_[i].logit); };
  double mass = 0;
  double sum = 0;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    const double weight = weight_at(depth(i));
    mass += weight;
    if (weight > 0) sum += weight * depth(i);
  }
  const double mean = sum / mass;
  // The nearest tokens are neighbours, because the candidates are sorted by depth.
  const auto nearest = std::ranges::lower_bound(
      candidates_, mean, {}, [&](const Candidate& candidate) { return static_cast<double>(best - candidate.logit); });
  auto first = static_cast<std::size_t>(nearest - candidates_.begin());
  std::size_t last = first;
  double seen = 0;
  while (last - first < candidates_.size() && seen <= params_.typical_p * mass) {
    const bool takes_better = last == candidates_.size() || (first > 0 && mean - depth(first - 1) <= depth(last) - mean);
    const std::size_t taken = takes_better ? --first : last++;
    seen += weight_at(depth(taken));
  }
  candidates_.resize(last);
  candidates_.erase(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(first));
}

void Sampler::cut_xtc() {
  const double least = params_.xtc_threshold * mass_of_candidates();
  const float best = candidates_.front().logit;
  std::size_t likely = 0;
  while (likely < candidates_.size() && weight_at(static_cast<double>(best - candidates_[likely].logit)) >= least) ++likely;
  if (likely > 1) candidates_.erase(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(likely - 1));
}

// Basu et al., "Mirostat: a neural text decoding algorithm that directly controls perplexity" (ICLR 2021).
void Sampler::cut_mirostat(std::span<const float> logits, float best) {
  if (params_.mirostat == 1) {
    constexpr std::size_t kEstimated = 100;  // The tokens from which the shape of the distribution is estimated.
    select_top_k(logits, kEstimated);
    sort_candidates();
    candidates_.resize(std::min(candidates_.size(), kEstimated));
    const std::size_t kept = mirostat_top_k(logits.size());
    if (kept > kEstimated) {
      select_top_k(logits, kept);
      sort_candidates();
    }
    candidates_.resize(std::min(candidates_.size(), kept));
    return;
  }
  // The surprise of a token in bits is the logarithm of the mass plus its depth.
  const double mass = sum_of_weights(logits, best, 1 / params_.temperature);
  const double depth = (mirostat_mu_ - std::log2(mass)) * std::numbers::ln2 * params_.temperature;
  select_from(logits, best - static_cast<float>(std::max(0.0, depth)));
  sort_candidates();
  if (depth < 0) candidates_.resize(1);
}

std::size_t Sampler::mirostat_top_k(std::size_t vocabulary) const {
  double products = 0;
  double squares = 0;
  for (std::size_t i = 0; i + 1 < candidates_.size(); ++i) {
    const double rank = std::log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
    const double step = static_cast<double>(candidates_[i].logit - candidates_[i + 1].logit) / params_.temperature;
    products += rank * step;
    squares += rank * rank;
  }
  const double exponent = products / squares;  // Exponent of the law of Zipf; NaN for one candidate.
  const double excess = exponent - 1;
  const auto size = static_cast<double>(vocabulary);
  // The fraction tends to 1 / ln(size).
  const double share = std::abs(excess) < 1e-9 ? 1 / std::log(size) : excess / (1 - std::pow(size, -excess));
  const double kept = std::pow(share * std::exp2(mirostat_mu_), 1 / exponent);
  return kept >= 1 ? static_cast<std::size_t>(std::min(kept, size)) : 1;
}

void Sampler::observe_chance(double chance) {
  mirostat_mu_ -= params_.mirostat_eta * (-std::log2(chance) - params_.mirostat_tau);
}

Token Sampler::draw_from_candidates() {
  const float best = candidates_.front().logit;
  const double scale = 1.0 / params_.temperature;
  const auto weight = [&](const Candidate& candidate) {
    return weight_at(static_cast<double>(best - candidate.logit) * scale);
  };
  double total = 0;
  for (const Candidate& candidate : candidates_) total += weight(candidate);
  double left = random_.next_unit() * total;
  const Candidate* drawn = &candidates_.front();
  for (const Candidate& candidate : candidates_) {
    left -= weight(candidate);
    if (left >= 0) continue;
    drawn = &candidate;
    break;
  }
  if (uses_mirostat()) observe_chance(weight(*drawn) / total);
  return drawn->token;
}

Token Sampler::draw_from_all(std::span<const float> logits, float best) {
  const double scale = 1.0 / params_.temperature;
  const auto weight = [&](float logit) { return weight_at(static_cast<double>(best - logit) * scale); };
  const auto block_at = [&](std::size_t block) {
    const std::size_t first = block * kLogitBlock;
    return logits.subspan(first, std::min(kLogitBlock, logits.size() - first));
  };
  masses_.clear();
  for (std::size_t block = 0; block < maxima_.size(); ++block) {
    masses_.push_back(weight(maxima_[block]) > 0 ? sum_of_weights(block_at(block), best, scale) : 0);
  }
  double left = random_.next_unit() * std::accumulate(masses_.begin(), masses_.end(), 0.0);
  for (std::size_t block = 0; block < maxima_.size(); ++block) {
    if (left >= masses_[block]) {
      left -= masses_[block];
      continue;
    }
    const std::span<const float> block_logits = block_at(block);
    for (std::size_t i = 0; i < block_logits.size(); ++i) {
      left -= weight(block_logits[i]);
      if (left < 0) return static_cast<Token>(block * kLogitBlock + i);
    }
  }
  return static_cast<Token>(index_of(logits, best));
}

Sampler::Cuts Sampler::cuts_of(std::size_t vocabulary) const {
  constexpr double kXtcThresholdMax = 0.5;  // At most one token can be more likely.
  return {.top_k = params_.top_k > 0 && static_cast<std::size_t>(params_.top_k) < vocabulary,
          .typical_p = params_.typical_p < 1,
          .top_p = params_.top_p < 1,
          .min_p = params_.min_p > 0,
          .xtc = params_.xtc_probability > 0 && params_.xtc_threshold <= kXtcThresholdMax};
}

bool Sampler::cut(std::span<const float> logits, float best) {
  if (params_.mirostat > 0) {
    cut_mirostat(logits, best);
    return true;
  }
  Cuts cuts = cuts_of(logits.size());
  if (cuts.xtc) cuts.xtc = random_.next_unit() < params_.xtc_probability;
  if (!cuts.any()) return false;

  double mass = 0;
  if (cuts.top_k) {
    select_top_k(logits, static_cast<std::size_t>(params_.top_k));
  } else if (cuts.typical_p || (!cuts.top_p && !cuts.min_p)) {
    select_from(logits, std::numeric_limits<float>::lowest());
  } else if (cuts.top_p) {
    mass = select_top_p(logits, best);
  } else {
    select_from(logits, best + static_cast<float>(std::log(params_.min_p)));
  }
  sort_candidates();
  if (cuts.top_k) candidates_.resize(std::min(candidates_.size(), static_cast<std::size_t>(params_.top_k)));
  if (cuts.typical_p) cut_typical_p();
  if (cuts.top_p) cut_top_p(mass > 0 ? mass : mass_of_candidates());
  if (cuts.min_p) cut_min_p();
  if (cuts.xtc) cut_xtc();
  return true;
}

Token Sampler::sample(std::span<float> logits) {
  UMA_CHECK(!logits.empty());
  adjust(logits);
  if (!constraint_) return choose(logits);
  if (const Token token = choose_allowed(logits); token != kNoToken) return token;
  constraint_->mask(logits);
  return choose(logits);
}

Token Sampler::choose(std::span<float> logits) {
  block_maxima(logits, kLogitBlock, maxima_);
  const float best = *std::ranges::max_element(maxima_);
  if (constraint_ && best == kNegativeInfinity) return kNoToken;
  if (is_greedy() || !std::isfinite(best)) return static_cast<Token>(index_of(logits, best));
  return cut(logits, best) ? draw_from_candidates() : draw_from_all(logits, best);
}

// Drawing without replacement until an allowed token appears is equivalent to a draw from the allowed tokens alone. Cuts depend
// on rank and distance from the best logit: repeated without the forbidden tokens until all their inputs are allowed, they
// equal the cuts of the allowed tokens. Cuts that depend on the mass of all allowed tokens, such as top-p alone, do not work
// this way.
Token Sampler::choose_allowed(std::span<float> logits) {
  constexpr int kTries = 8;
  const Cuts wanted = cuts_of(logits.size());
  if (uses_mirostat() || (!is_greedy() && wanted.depend_on_mass())) return kNoToken;
  const bool cuts = !is_greedy() && wanted.any();
  for (int i = 0; i < kTries; ++i) {
    if (cuts && !are_all_allowed(logits)) continue;
    const Token token = choose(logits);
    if (token == kNoToken || cuts || constraint_->allows(token)) return token;
    logits[static_cast<std::size_t>(token)] = kNegativeInfinity;
  }
  return kNoToken;
}

bool Sampler::are_all_allowed(std::span<float> logits) {
  constexpr std::size_t kCandidatesMax = 256;
  block_maxima(logits, kLogitBlock, maxima_);
  const float best = *std::ranges::max_element(maxima_);
  if (!std::isfinite(best)) return true;
  if (params_.top_k > 0 && static_cast<std::size_t>(params_.top_k) < logits.size()) {
    select_top_k(logits, static_cast<std::size_t>(params_.top_k));
    sort_candidates();
    candidates_.resize(std::min(candidates_.size(), static_cast<std::size_t>(params_.top_k)));
  } else {
    select_from(logits, best + static_cast<float>(std::log(params_.min_p)));
  }
  if (candidates_.size() > kCandidatesMax) return false;
  bool all = true;
  for (const Candidate& candidate : candidates_) {
    if (constraint_->allows(candidate.token)) continue;
    logits[static_cast<std::size_t>(candidate.token)] = kNegativeInfinity;
    all = false;
  }
  return all;
}

void Sampler::distribution(std::span<float> logits, Distribution& chances) {
  UMA_CHECK(!logits.empty());
  chances.clear();
  adjust(logits);
  if (constraint_) constraint_->mask(logits);
  block_maxima(logits, kLogitBlock, maxima_);
  const float best = *std::ranges::max_element(maxima_);
  if (constraint_ && best == kNegativeInfinity) return;
  if (params_.temperature <= 0 || !std::isfinite(best)) {
    chances.push_back({static_cast<Token>(index_of(logits, best)), 1});
    return;
  }
  const double scale = 1.0 / params_.temperature;
  double total = 0;
  float largest = best;
  const auto add = [&](Token token, float logit) {
    const double weight = weight_at(static_cast<double>(largest - logit) * scale);
    if (weight <= 0) return;
    chances.push_back({token, weight});
    total += weight;
  };
  if (cut(logits, best)) {
    largest = candidates_.front().logit;  // Some cuts remove the best token.
    for (const Candidate& candidate : candidates_) add(candidate.token, candidate.logit);
    std::ranges::sort(chances, {}, &TokenChance::token);
  } else {
    for (std::size_t i = 0; i < logits.size(); ++i) add(static_cast<Token>(i), logits[i]);
  }
  for (TokenChance& entry : chances) entry.chance /= total;
}

Token Sampler::verify(std::span<float> logits, Token drafted, const Distribution& draft) {
  distribution(logits, wanted_);
  if (wanted_.empty()) return kNoToken;
  const Token token = verify_drafted(wanted_, draft, drafted, random_);
  if (uses_mirostat()) observe_chance(chance_of(wanted_, token));
  return token;
}

Sampler Sampler::drafting(std::uint64_t seed) const {
  SamplingParams params = params_;
  if (!is_greedy()) params.top_k = params.top_k > 0 ? std::min(params.top_k, kDraftCandidates) : kDraftCandidates;
  params.mirostat = 0;
  Sampler made(params, seed, banned_);
  made.penalties_ = penalties_;
  return made;
}

}  // namespace uma::llm
