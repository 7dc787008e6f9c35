// Which tokens may come next where a generation's text must follow a grammar. One per generation; owned by its sampler.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llm/grammar.h"
#include "llm/model.h"

namespace uma::llm {

class TokenConstraint {
 public:
  // `marks` are control tokens that have a text here. They and `vocab` outlive it.
  TokenConstraint(std::shared_ptr<const Grammar> grammar, const Vocab& vocab,
                  std::span<const std::pair<Token, std::string>> marks = {})
      : reader_(std::move(grammar)), vocab_(vocab), marks_(marks) {}

  // End-of-generation tokens may come where the text may end; tokens without text, such as other control tokens, never. O(bytes
  // of the token).
  [[nodiscard]] bool allows(Token token);
  // Forbids in `logits` all tokens that may not come. O(V).
  void mask(std::span<float> logits);
  // Goes on behind the token. Requires one that may come, no end-of-generation token.
  void accept(Token token);
  // Goes on behind a text. False: it may not come, and nothing may follow.
  [[nodiscard]] bool accept_text(std::string_view text);

  [[nodiscard]] bool can_end() { return reader_.can_end(place_); }
  // Nothing but the end may come.
  [[nodiscard]] bool is_complete() { return can_end() && !reader_.can_go_on(place_); }

 private:
  // For one token (GrammarReader::limit_work()): others' streams wait meanwhile. What a grammar allows only beyond that is not
  // allowed.
  static constexpr std::uint64_t kWorkMax = 1u << 19;

  [[nodiscard]] std::string_view text_of(Token token) const;

  GrammarReader reader_;
  const Vocab& vocab_;
  const std::span<const std::pair<Token, std::string>> marks_;
  GrammarReader::Place place_ = GrammarReader::kStart;
  // Reused by mask().
  std::vector<bool> allowed_;
  std::vector<GrammarReader::Place> places_;  // after each beginning of a piece
};

}  // namespace uma::llm
