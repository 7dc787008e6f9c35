#include "llm/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace uma::llm {
namespace {

constexpr std::size_t kPenaltyWindow = 64;
constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

// The largest logit. In lanes of their own, so that the compiler may use vector instructions: one running maximum would have to
// keep its order. NaN compares false and so never wins.
float max_logit(std::span<const float> logits) {
  constexpr std::size_t kLanes = 32;
  std::array<float, kLanes> best;
  best.fill(kNegativeInfinity);
  std::size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      best[lane] = logits[i + lane] > best[lane] ? logits[i + lane] : best[lane];
  }
  for (; i < logits.size(); ++i) best[0] = logits[i] > best[0] ? logits[i] : best[0];
  return *std::ranges::max_element(best);
}

// Index of the largest logit; the first of several.
std::size_t index_of_max(std::span<const float> logits) {
  const auto found = std::ranges::find(logits, max_logit(logits));
  return found == logits.end() ? 0 : static_cast<std::size_t>(found - logits.begin());
}

constexpr auto kByLogitDescending = [](const auto& a, const auto& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
};

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

void Sampler::select_all_above(std::span<const float> logits, float threshold) {
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] >= threshold) candidates_.push_back({logits[i], static_cast<Token>(i)});
  }
}

void Sampler::select_top_k(std::span<const float> logits, std::size_t k) {
  // A heap of the k best so far, worst on top: nearly every logit of a large vocabulary fails one comparison with it.
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const Candidate candidate{logits[i], static_cast<Token>(i)};
    if (std::isnan(candidate.logit)) continue;
    if (candidates_.size() < k) {
      candidates_.push_back(candidate);
      std::ranges::push_heap(candidates_, kByLogitDescending);
    } else if (candidate.logit > candidates_.front().logit) {
      std::ranges::pop_heap(candidates_, kByLogitDescending);
      candidates_.back() = candidate;
      std::ranges::push_heap(candidates_, kByLogitDescending);
    }
  }
}

double Sampler::select_window(std::span<const float> logits, float best) {
  double total = 0;
  for (const float logit : logits) total += logit > kNegativeInfinity ? std::exp(static_cast<double>(logit - best)) : 0;
  for (const float width : {4.0f, 8.0f, 16.0f, 32.0f}) {
    select_all_above(logits, best - width);
    if (mass_of_candidates(best) >= params_.top_p * total) return total;
  }
  select_all_above(logits, std::numeric_limits<float>::lowest());
  return total;
}

double Sampler::mass_of_candidates(float best) const {
  double mass = 0;
  for (const Candidate& candidate : candidates_) mass += std::exp(static_cast<double>(candidate.logit - best));
  return mass;
}

void Sampler::cut_top_p(double total) {
  const float best = candidates_.front().logit;
  double seen = 0;
  std::size_t keep = 0;
  while (keep < candidates_.size() && seen < params_.top_p * total) {
    seen += std::exp(static_cast<double>(candidates_[keep++].logit - best));
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
  double total = 0;
  for (const Candidate& candidate : candidates_) total += std::exp(static_cast<double>(candidate.logit - best) * scale);
  double left = random_.next_unit() * total;
  for (const Candidate& candidate : candidates_) {
    left -= std::exp(static_cast<double>(candidate.logit - best) * scale);
    if (left < 0) return candidate.token;
  }
  return candidates_.front().token;
}

Token Sampler::draw_from_all(std::span<const float> logits, std::size_t best_index) {
  const float best = logits[best_index];
  const double scale = 1.0 / params_.temperature;
  const auto weight = [&](float logit) {
    return logit > kNegativeInfinity ? std::exp(static_cast<double>(logit - best) * scale) : 0.0;
  };
  double total = 0;
  for (const float logit : logits) total += weight(logit);
  double left = random_.next_unit() * total;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    left -= weight(logits[i]);
    if (left < 0) return static_cast<Token>(i);
  }
  return static_cast<Token>(best_index);
}

Token Sampler::sample(std::span<float> logits) {
  UMA_CHECK(!logits.empty());
  adjust(logits);
  const std::size_t best_index = index_of_max(logits);
  const float best = logits[best_index];
  if (params_.temperature <= 0 || !(best > kNegativeInfinity)) return static_cast<Token>(best_index);

  const bool cuts_top_k = params_.top_k > 0 && static_cast<std::size_t>(params_.top_k) < logits.size();
  const bool cuts_top_p = params_.top_p < 1;
  const bool cuts_min_p = params_.min_p > 0;
  if (!cuts_top_k && !cuts_top_p && !cuts_min_p) return draw_from_all(logits, best_index);

  double mass = 0;
  if (cuts_top_k) {
    select_top_k(logits, static_cast<std::size_t>(params_.top_k));
    mass = mass_of_candidates(best);
  } else if (cuts_top_p) {
    mass = select_window(logits, best);
  } else {
    select_all_above(logits, best + static_cast<float>(std::log(params_.min_p)));
  }
  std::ranges::sort(candidates_, kByLogitDescending);
  if (cuts_top_p) cut_top_p(mass);
  if (cuts_min_p) cut_min_p();
  return draw_from_candidates();
}

}  // namespace uma::llm
