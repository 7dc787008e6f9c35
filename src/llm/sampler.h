// Chooses the next token of one sequence from its logits. One per generation; owned by its lane.
// Order, as in llama.cpp: logit bias and end-of-generation ban, penalties over the last 64 tokens, top-k, top-p, min-p,
// temperature, draw. Sorts candidates, not the vocabulary: a threshold comes first, from the maxima of its blocks (top-k,
// min-p) or its mass by depth (top-p), and only blocks that reach it are read again.
// With a constraint it chooses as if all tokens that may not come had no logit, before any cut.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/random.h"
#include "core/ids.h"
#include "core/sampling_params.h"
#include "llm/distribution.h"
#include "llm/token_constraint.h"

namespace uma::llm {

class Sampler {
 public:
  // `banned` are tokens that are never chosen (the end-of-generation tokens where ignore_eos is set). Tokens of
  // params.logit_bias and `banned` that are outside the vocabulary are passed over.
  Sampler(const SamplingParams& params, std::uint64_t seed, std::span<const Token> banned);

  // What is chosen from here on follows `constraint`, or nothing where it is null. Call after the prompt was noted.
  void constrain(std::unique_ptr<TokenConstraint> constraint) { constraint_ = std::move(constraint); }
  // Nothing but the end may come.
  [[nodiscard]] bool is_complete() const { return constraint_ && constraint_->is_complete(); }
  // Null: there is none.
  [[nodiscard]] TokenConstraint* constraint() const { return constraint_.get(); }

  // Notes a token of the chain, prompt or reply, for the penalties and the constraint.
  void accept(Token token);

  // Returns a token of the vocabulary whose logits these are; kNoToken where the constraint leaves none. Writes into `logits`
  // (penalties, bias, constraint). NaN never wins. O(V), plus O(c log c) for c candidates. Requires a non-empty span.
  [[nodiscard]] Token sample(std::span<float> logits);

  // The chances with which sample() would choose, after all cuts; greedy: one token. Writes into `logits` too. Tokens whose
  // chance is below e^-48 of the best one's are left out, as in a draw. Empty where the constraint leaves none.
  void distribution(std::span<float> logits, Distribution& chances);

  // Chooses as sample() does, in distribution, but given `drafted`, which was drawn from `draft`: see verify_drafted().
  [[nodiscard]] Token verify(std::span<float> logits, Token drafted, const Distribution& draft);

  // A sampler that drafts what this one will verify: the same parameters and tokens noted, but no constraint, random numbers of
  // its own, and at most kDraftCandidates tokens to draw from, which bounds the distributions that are kept until then.
  [[nodiscard]] Sampler drafting(std::uint64_t seed) const;
  static constexpr int kDraftCandidates = 64;

  [[nodiscard]] bool is_greedy() const { return params_.temperature <= 0; }

 private:
  struct Candidate {
    float logit;
    Token token;
  };

  void adjust(std::span<float> logits);
  // From adjusted logits.
  [[nodiscard]] Token choose(std::span<float> logits);
  // Chooses a token that may come by asking for few; kNoToken: that did not do, and some that may not have lost their logit.
  [[nodiscard]] Token choose_allowed(std::span<float> logits);
  // Takes from the candidates that the cuts begin with their logit where they may not come. True: all of them may.
  [[nodiscard]] bool are_all_allowed(std::span<float> logits);
  // Makes candidates_ of the adjusted logits those that all cuts leave, in their order. False: there is no cut.
  [[nodiscard]] bool cut(std::span<const float> logits, float best);
  // The first index of the largest logit, which is `best`.
  [[nodiscard]] std::size_t index_of(std::span<const float> logits, float best) const;
  // Makes candidates of all logits from `threshold` on, in order of their tokens.
  void select_from(std::span<const float> logits, float threshold);
  void select_top_k(std::span<const float> logits, std::size_t k);
  // Selects the best logits, at least until they hold top_p of the whole mass, which it returns.
  [[nodiscard]] double select_top_p(std::span<const float> logits, float best);
  // The largest logit first, equal ones in order of their tokens.
  void sort_candidates();
  // Masses are sums of e^(logit - best).
  [[nodiscard]] double mass_of_candidates() const;
  void cut_top_p(double total_mass);
  void cut_min_p();
  [[nodiscard]] Token draw_from_candidates();
  [[nodiscard]] Token draw_from_all(std::span<const float> logits, float best);

  SamplingParams params_;
  std::vector<Token> banned_;
  Random random_;
  std::unique_ptr<TokenConstraint> constraint_;
  std::vector<Token> recent_;  // ring of the last kPenaltyWindow tokens
  std::size_t recent_next_ = 0;
  std::vector<std::pair<Token, int>> counts_;  // reused by adjust()
  // Reused by sample().
  std::vector<float> maxima_;  // of the blocks
  std::vector<float> ranked_maxima_;
  std::vector<double> masses_;  // of the blocks
  std::vector<Candidate> candidates_;
  std::vector<Candidate> sorted_;
  Distribution wanted_;  // reused by verify()
};

}  // namespace uma::llm
