// Lowers the logits of tokens that would repeat the text, as llama.cpp's samplers of the same names do: the penalties count
// single tokens, and DRY ("don't repeat yourself", p-e-w 2024) finds tokens that would continue a sequence which has occurred
// before. Of a text, at most the last kWindowMax tokens are seen. Nothing is recorded if all penalties are off.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/ids.h"
#include "core/sampling_params.h"
#include "llm/model.h"
#include "llm/sampling/text_finder.h"

namespace uma::llm {

class RepetitionPenalties {
 public:
  static constexpr std::size_t kWindowMax = 1 << 16;
  // Approximate bytes of an object with these parameters that has accepted a text of `tokens` tokens.
  [[nodiscard]] static std::size_t bytes_of(const SamplingParams& params, std::size_t tokens);

  // `vocab` has the texts in which DRY's sequence breakers are searched, and outlives the object; null: there are no breakers.
  RepetitionPenalties(const SamplingParams& params, const Vocab* vocab);

  // The number of last tokens that count, of all that were accepted. 0: all penalties are off.
  [[nodiscard]] std::size_t window() const { return std::max(penalty_window_, dry_window_); }
  void accept(Token token);
  // Lowers the logits of the next token. O(different tokens) for the penalties, O(tokens) for DRY. Tokens outside the
  // vocabulary are ignored.
  void apply(std::span<float> logits);

 private:
  [[nodiscard]] std::span<const Token> last(std::size_t count) const;
  void apply_penalties(std::span<float> logits) const;
  void apply_dry(std::span<float> logits);
  // Writes to lengths_[i] how many tokens before and at the i-th last token are equal to the last tokens of the text.
  void match_suffix(std::span<const Token> tokens);
  // Counts the tokens since the last breaker.
  void follow_breakers(Token token);

  const Vocab* vocab_;
  double repeat_;
  double presence_;
  double frequency_;
  double dry_multiplier_;
  double dry_base_;
  std::size_t dry_allowed_length_;
  std::size_t penalty_window_;                  // 0: the penalties are off.
  std::size_t dry_window_;                      // 0: DRY is off.
  std::shared_ptr<const TextFinder> breakers_;  // Null: there are none. Shared with the samplers of draft tokens.

  std::vector<Token> tokens_;              // The last tokens; at least window() of them, if there are so many.
  std::unordered_map<Token, int> counts_;  // Counts of the last penalty_window_ tokens.
  TextFinder::State breaker_begun_ = TextFinder::kStart;
  std::size_t since_breaker_ = kWindowMax;           // Tokens behind the last breaker; kWindowMax: there was none.
  std::vector<std::size_t> lengths_;                 // Reused by apply_dry().
  std::unordered_map<Token, std::size_t> repeated_;  // Reused by apply_dry().
};

}  // namespace uma::llm
