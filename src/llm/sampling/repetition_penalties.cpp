#include "llm/sampling/repetition_penalties.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace uma::llm {
namespace {

// The number of last tokens that a setting means: -1 means all.
std::size_t window_of(int last_n) {
  if (last_n < 0) return RepetitionPenalties::kWindowMax;
  return std::min(static_cast<std::size_t>(last_n), RepetitionPenalties::kWindowMax);
}

std::vector<std::string> breakers_of(const SamplingParams& params) {
  if (params.dry_sequence_breakers) return *params.dry_sequence_breakers;
  return {"\n", ":", "\"", "*"};
}

bool is_in(Token token, std::span<const float> logits) {
  return token >= 0 && static_cast<std::size_t>(token) < logits.size();
}

}  // namespace

RepetitionPenalties::RepetitionPenalties(const SamplingParams& params, const Vocab* vocab)
    : vocab_(vocab),
      repeat_(params.repeat_penalty),
      presence_(params.presence_penalty),
      frequency_(params.frequency_penalty),
      dry_multiplier_(params.dry_multiplier),
      dry_base_(params.dry_base),
      dry_allowed_length_(static_cast<std::size_t>(params.dry_allowed_length)) {
  const bool penalizes = repeat_ != 1 || presence_ != 0 || frequency_ != 0;
  penalty_window_ = penalizes ? window_of(params.repeat_last_n) : 0;
  dry_window_ = dry_multiplier_ > 0 ? window_of(params.dry_penalty_last_n) : 0;
  if (dry_window_ == 0 || vocab == nullptr) return;
  if (const std::vector<std::string> breakers = breakers_of(params); !breakers.empty())
    breakers_ = std::make_shared<const TextFinder>(breakers);
}

std::size_t RepetitionPenalties::bytes_of(const SamplingParams& params, std::size_t tokens) {
  constexpr std::size_t kEntryBytes = 40;  // Bytes of an unordered map's entry.
  constexpr std::size_t kTokenBytes = 2 * sizeof(Token) + sizeof(std::size_t) + 2 * kEntryBytes;
  return std::min(RepetitionPenalties(params, nullptr).window(), tokens) * kTokenBytes;
}

std::span<const Token> RepetitionPenalties::last(std::size_t count) const {
  return std::span(tokens_).last(std::min(count, tokens_.size()));
}

void RepetitionPenalties::accept(Token token) {
  if (window() == 0) return;
  if (penalty_window_ > 0) {
    if (tokens_.size() >= penalty_window_) {
      const auto oldest = counts_.find(last(penalty_window_).front());
      if (--oldest->second == 0) counts_.erase(oldest);
    }
    ++counts_[token];
  }
  // Half of the tokens are dropped at once, so that moving the others costs little.
  if (tokens_.size() >= 2 * window()) {
    tokens_.erase(tokens_.begin(), tokens_.end() - static_cast<std::ptrdiff_t>(window()));
  }
  tokens_.push_back(token);
  if (breakers_) follow_breakers(token);
}

void RepetitionPenalties::follow_breakers(Token token) {
  // Rows of images have no text.
  const bool ends_here = token < vocab_->size() && breakers_->read(breaker_begun_, vocab_->piece(token));
  since_breaker_ = ends_here ? 0 : std::min(since_breaker_ + 1, kWindowMax);
}

void RepetitionPenalties::apply(std::span<float> logits) {
  if (penalty_window_ > 0) apply_penalties(logits);
  if (dry_window_ > 0) apply_dry(logits);
}

void RepetitionPenalties::apply_penalties(std::span<float> logits) const {
  using Limits = std::numeric_limits<float>;
  const float repeat = std::max(static_cast<float>(repeat_), Limits::min());  // Not 0, for logits that are infinite.
  for (const auto& [token, count] : counts_) {
    if (!is_in(token, logits)) continue;
    float& logit = logits[static_cast<std::size_t>(token)];
    // Dividing a positive logit and multiplying a negative one both make the token less likely (Keskar et al. 2019, CTRL).
    logit = logit > 0 ? std::min(logit / repeat, Limits::max()) : logit * repeat;
    logit -= static_cast<float>(presence_ + frequency_ * count);
  }
}

// The Z-algorithm on the reversed text: O(tokens) also for a text that consists of one repeated token.
void RepetitionPenalties::match_suffix(std::span<const Token> tokens) {
  const std::size_t count = tokens.size();
  const auto from_end = [&](std::size_t i) { return tokens[count - 1 - i]; };
  lengths_.assign(count, 0);
  std::size_t begin = 0;  // The match that reaches farthest: [begin, end).
  std::size_t end = 0;
  for (std::size_t i = 1; i < count; ++i) {
    std::size_t length = i < end ? std::min(lengths_[i - begin], end - i) : 0;
    while (i + length < count && from_end(length) == from_end(i + length)) ++length;
    lengths_[i] = length;
    if (i + length > end) {
      begin = i;
      end = i + length;
    }
  }
}

void RepetitionPenalties::apply_dry(std::span<float> logits) {
  const std::span<const Token> tokens = last(dry_window_);
  const std::size_t longest = std::min(since_breaker_, tokens.size());
  if (longest < dry_allowed_length_) return;
  match_suffix(tokens);
  // The i-th last token ends an earlier occurrence of the last lengths_[i] tokens. The token behind it would continue it.
  repeated_.clear();
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    const std::size_t length = std::min(lengths_[i], longest);
    if (length < dry_allowed_length_) continue;
    std::size_t& known = repeated_[tokens[tokens.size() - i]];
    known = std::max(known, length);
  }
  for (const auto& [token, length] : repeated_) {
    if (!is_in(token, logits) || (breakers_ && breakers_->is_in(vocab_->piece(token)))) continue;
    constexpr double kPenaltyMax = std::numeric_limits<float>::max();
    const double penalty = dry_multiplier_ * std::pow(dry_base_, static_cast<double>(length - dry_allowed_length_));
    logits[static_cast<std::size_t>(token)] -= static_cast<float>(std::min(penalty, kPenaltyMax));
  }
}

}  // namespace uma::llm
