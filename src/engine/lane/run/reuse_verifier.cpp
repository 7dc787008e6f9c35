#include "engine/lane/run/reuse_verifier.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "llm/media/image_tokens.h"
#include "llm/sampling/logits.h"

namespace uma::engine {

bool ReuseVerifier::takes_next() {
  if (every_ == 0 || context_.shape().spare < 0 || ++reuses_ < every_ || current_) return false;
  reuses_ = 0;
  return true;
}

void ReuseVerifier::begin(Reuse reuse) {
  UMA_CHECK(!current_ && reuse.tokens.size() > 1 && std::ranges::none_of(reuse.tokens, llm::is_image_token));
  current_ = std::move(reuse);
  rows_done_ = 0;
}

std::int32_t ReuseVerifier::rows_left() const {
  return current_ ? static_cast<std::int32_t>(current_->tokens.size()) - rows_done_ : 0;
}

Expected<std::optional<double>> ReuseVerifier::step(std::int32_t rows_max) {
  const std::int32_t count = std::min({rows_left(), rows_max, context_.shape().batch_rows_max});
  UMA_CHECK(count > 0);
  const std::int32_t spare = context_.shape().spare;
  const bool is_last = count == rows_left();
  rows_.clear();
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t position = rows_done_ + i;
    rows_.push_back({.token = current_->tokens[static_cast<std::size_t>(position)],
                     .position = position,
                     .sequence = spare,
                     .wants_logits = is_last && i + 1 == count});
  }
  const auto status = context_.decode(rows_, nullptr);
  if (!status) return std::unexpected(status.error());
  if (*status != llm::DecodeStatus::done) return fail(ErrorCode::runtime_decode, "the context has no free cells for it");
  rows_done_ += count;
  if (!is_last) return std::nullopt;
  const std::span<const float> logits = context_.logits(count - 1);
  if (logits.empty()) return fail(ErrorCode::runtime_decode, "the library returned no logits for a token");
  return llm::logits_distance(current_->logits, logits);
}

void ReuseVerifier::end() {
  if (!current_) return;
  UMA_CHECK(context_.truncate(context_.shape().spare, 0));
  current_.reset();
  rows_done_ = 0;
}

}  // namespace uma::engine
