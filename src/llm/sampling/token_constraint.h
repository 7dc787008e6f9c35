// Restricts the next tokens of a generation to a grammar. The letters of a mark, such as that of a forced call, are not allowed
// where its token is: models learn from the token, and a history that is written again has it. One per generation; owned by its
// sampler.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/grammar.h"
#include "llm/model.h"

namespace uma::llm {

class TokenConstraint {
 public:
  // `marks` are tokens with their text, which control tokens have from here; `ends` are end-of-generation tokens beside the
  // vocabulary's. They and `vocab` must outlive this object.
  TokenConstraint(std::shared_ptr<const grammar::Grammar> grammar, const Vocab& vocab,
                  std::span<const std::pair<Token, std::string>> marks = {}, std::span<const Token> ends = {})
      : reader_(std::move(grammar)), vocab_(vocab), marks_(marks), ends_(ends) {
    reader_.limit_work(kWorkMax);
  }

  // End-of-generation tokens are allowed where the text may end. Tokens without text, such as other control tokens, are never
  // allowed. O(bytes of the token).
  [[nodiscard]] bool allows(Token token);
  // Sets the logits of all forbidden tokens to -infinity. O(V).
  void mask(std::span<float> logits);
  // Advances behind the token. Requires: an allowed token, no end-of-generation token.
  void accept(Token token);
  // The token is never chosen, whatever the grammar allows: the letters of an excluded mark stand for it.
  void exclude(Token token) { excluded_.push_back(token); }
  // Advances behind a text. False: the grammar forbids the text, and nothing may follow.
  [[nodiscard]] bool accept_text(std::string_view text);

  [[nodiscard]] bool can_end() { return reader_.can_end(place_); }
  // Whether only the end may follow.
  [[nodiscard]] bool is_complete() { return can_end() && !reader_.can_go_on(place_); }
  // The work so far, in GrammarReader's units, of which a core does about kWorkPerMs in a millisecond.
  static constexpr double kWorkPerMs = 24'000;
  [[nodiscard]] std::uint64_t work() const { return reader_.work(); }

 private:
  // The work for one token, with all looks at what may follow it: other streams wait meanwhile. What needs more is forbidden.
  static constexpr std::uint64_t kWorkMax = 1u << 19;

  [[nodiscard]] std::string_view text_of(Token token) const;
  // The number of bytes of the mark, which comes after `lead`, behind which nothing but its rest may follow; all, if it is
  // forbidden or others may.
  [[nodiscard]] std::size_t given_from(std::string_view lead, std::string_view mark);
  // Whether the mark may be chosen, so that its letters need not.
  [[nodiscard]] bool may_be_chosen(Token mark) const;
  void forbid_piece(std::string_view piece);

  grammar::GrammarReader reader_;
  const Vocab& vocab_;
  const std::span<const std::pair<Token, std::string>> marks_;
  const std::span<const Token> ends_;
  std::vector<Token> excluded_;
  grammar::GrammarReader::Place place_ = grammar::GrammarReader::kStart;
  // Reused by mask().
  std::vector<bool> allowed_;
  std::vector<grammar::GrammarReader::Place> places_;  // The places after each beginning of a piece.
  std::vector<grammar::GrammarReader::Place> mark_places_;
};

}  // namespace uma::llm
