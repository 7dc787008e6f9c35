#include "llm/sampling/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/check.h"
#include "llm/sampling/logits.h"

namespace uma::llm {
namespace {

struct Likely {
  float logit = 0;
  Token token = 0;
};

bool goes_before(const Likely& a, const Likely& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

float logit_at(std::span<const float> logits, std::size_t index) {
  return std::isnan(logits[index]) ? -std::numeric_limits<float>::infinity() : logits[index];
}

// The best `count` tokens, in order.
std::vector<Likely> best_of(std::span<const float> logits, std::size_t count) {
  std::vector<Likely> best;  // A heap with the worst candidate first.
  best.reserve(count + 1);
  for (std::size_t i = 0; i < logits.size() && count > 0; ++i) {
    const Likely next{logit_at(logits, i), static_cast<Token>(i)};
    if (best.size() == count && !goes_before(next, best.front())) continue;
    best.push_back(next);
    std::ranges::push_heap(best, goes_before);
    if (best.size() <= count) continue;
    std::ranges::pop_heap(best, goes_before);
    best.pop_back();
  }
  std::ranges::sort_heap(best, goes_before);
  return best;
}

}  // namespace

TokenLogprobs logprobs_of(std::span<const float> logits, Token chosen, std::int32_t top, const Vocab& vocab) {
  UMA_CHECK(chosen >= 0 && static_cast<std::size_t>(chosen) < logits.size() && top >= 0);
  const std::vector<Likely> best = best_of(logits, static_cast<std::size_t>(std::max(1, top)));
  const float largest = best.front().logit;
  // Weights are relative to the largest logit, so nothing overflows.
  const double log_mass = std::isfinite(largest) ? std::log(sum_of_weights(logits, largest, 1.0)) : 0;
  const auto reported = [&](Likely likely) {
    const double logprob = static_cast<double>(likely.logit) - static_cast<double>(largest) - log_mass;
    return TokenLogprob{.token = likely.token,
                        .logprob = logprob >= kLogprobMin ? logprob : kLogprobMin,  // Also the result for NaN.
                        .bytes = std::string(vocab.piece(likely.token))};
  };
  TokenLogprobs place{.chosen = reported({logit_at(logits, static_cast<std::size_t>(chosen)), chosen})};
  for (std::int32_t i = 0; i < top && i < static_cast<std::int32_t>(best.size()); ++i) {
    place.top.push_back(reported(best[static_cast<std::size_t>(i)]));
  }
  return place;
}

}  // namespace uma::llm
