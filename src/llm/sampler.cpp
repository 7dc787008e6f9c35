#include "llm/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "llm/logits.h"

namespace uma::llm {
namespace {

constexpr std::size_t kPenaltyWindow = 64;

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

Sampler::Sampler(const SamplingParams& params, std::uint64_t seed, std::span<const Token> banned)
    : params_(params), banned_(banned.begin(), banned.end()), random_(seed) {}

void Sampler::accept(Token token) {
  if (recent_.size() < kPenaltyWindow) {
    recent_.push_back(token);
  } else {
    recent_[recent_next_] = token;
    recent_next_ = (recent_next_ + 1) % kPenaltyWindow;
  }
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
  if (params_.repeat_penalty == 1 && params_.presence_penalty == 0 && params_.frequency_penalty == 0) return;
  counts_.clear();
  for (const Token token : recent_) {
    const auto known = std::ranges::find(counts_, token, &std::pair<Token, int>::first);
    if (known == counts_.end()) {
      counts_.emplace_back(token, 1);
    } else {
      ++known->second;
    }
  }
  for (const auto& [token, count] : counts_) {
    if (!in_vocabulary(token)) continue;
    float& logit = logits[static_cast<std::size_t>(token)];
    // Dividing a positive logit and multiplying a negative one both make the token less likely (Keskar et al. 2019, CTRL).
    const auto repeat = static_cast<float>(params_.repeat_penalty);
    logit = logit > 0 ? logit / repeat : logit * repeat;
    logit -= static_cast<float>(params_.presence_penalty + params_.frequency_penalty * count);
  }
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

Token Sampler::draw_from_candidates() {
  const float best = candidates_.front().logit;
  const double scale = 1.0 / params_.temperature;
  const auto weight = [&](const Candidate& candidate) {
    return weight_at(static_cast<double>(best - candidate.logit) * scale);
  };
  double total = 0;
  for (const Candidate& candidate : candidates_) total += weight(candidate);
  double left = random_.next_unit() * total;
  for (const Candidate& candidate : candidates_) {
    left -= weight(candidate);
    if (left < 0) return candidate.token;
  }
  return candidates_.front().token;
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

bool Sampler::cut(std::span<const float> logits, float best) {
  const bool cuts_top_k = params_.top_k > 0 && static_cast<std::size_t>(params_.top_k) < logits.size();
  const bool cuts_top_p = params_.top_p < 1;
  const bool cuts_min_p = params_.min_p > 0;
  if (!cuts_top_k && !cuts_top_p && !cuts_min_p) return false;

  double mass = 0;
  if (cuts_top_k) {
    select_top_k(logits, static_cast<std::size_t>(params_.top_k));
  } else if (cuts_top_p) {
    mass = select_top_p(logits, best);
  } else {
    select_from(logits, best + static_cast<float>(std::log(params_.min_p)));
  }
  sort_candidates();
  if (cuts_top_k) {
    candidates_.resize(std::min(candidates_.size(), static_cast<std::size_t>(params_.top_k)));
    mass = mass_of_candidates();
  }
  if (cuts_top_p) cut_top_p(mass);
  if (cuts_min_p) cut_min_p();
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
  if (params_.temperature <= 0 || !std::isfinite(best)) return static_cast<Token>(index_of(logits, best));
  return cut(logits, best) ? draw_from_candidates() : draw_from_all(logits, best);
}

// Drawing without replacement until an allowed token appears is equivalent to a draw from the allowed tokens alone. Cuts depend
// on rank and distance from the best logit: repeated without the forbidden tokens until all their inputs are allowed, they
// equal the cuts of the allowed tokens. Top-p alone does not work this way, because it depends on the mass of all allowed
// tokens.
Token Sampler::choose_allowed(std::span<float> logits) {
  constexpr int kTries = 8;
  const bool cuts_top_k = params_.top_k > 0 && static_cast<std::size_t>(params_.top_k) < logits.size();
  if (!is_greedy() && params_.top_p < 1 && !cuts_top_k) return kNoToken;
  const bool cuts = !is_greedy() && (cuts_top_k || params_.min_p > 0);
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
  const auto add = [&](Token token, float logit) {
    const double weight = weight_at(static_cast<double>(best - logit) * scale);
    if (weight <= 0) return;
    chances.push_back({token, weight});
    total += weight;
  };
  if (cut(logits, best)) {
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
  return verify_drafted(wanted_, draft, drafted, random_);
}

Sampler Sampler::drafting(std::uint64_t seed) const {
  SamplingParams params = params_;
  if (!is_greedy()) params.top_k = params.top_k > 0 ? std::min(params.top_k, kDraftCandidates) : kDraftCandidates;
  Sampler made(params, seed, banned_);
  made.recent_ = recent_;
  made.recent_next_ = recent_next_;
  return made;
}

}  // namespace uma::llm
