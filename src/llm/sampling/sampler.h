// Chooses the next token of one sequence from its logits. One per generation; owned by its lane. The order is that of
// llama.cpp: logit bias and end-of-generation ban, penalties and DRY, top-k, typical-p, top-p, min-p, XTC, temperature, draw.
// Mirostat takes the place of all cuts and comes after the temperature. Only candidates are sorted, not the vocabulary: a first
// pass finds a threshold from the maxima of blocks (top-k, min-p), from the mass by depth (top-p) or from the total mass
// (mirostat), and only blocks above it are read again. A constraint acts before any cut, as if forbidden tokens had no logit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/random.h"
#include "core/ids.h"
#include "core/sampling_params.h"
#include "llm/model.h"
#include "llm/sampling/distribution.h"
#include "llm/sampling/repetition_penalties.h"
#include "llm/sampling/token_constraint.h"

namespace uma::llm {

class Sampler {
 public:
  // Tokens in `banned` are never chosen (the end-of-generation tokens if ignore_eos is set). Tokens outside the vocabulary in
  // params.logit_bias and `banned` are ignored. A temperature whose reciprocal is infinite counts as 0. `vocab` has the texts
  // of DRY's sequence breakers and outlives the sampler; null: there are no breakers.
  Sampler(const SamplingParams& params, std::uint64_t seed, std::span<const Token> banned, const Vocab* vocab = nullptr);

  // Constrains all later tokens; null: no constraint. Call it after accept() of the whole prompt.
  void constrain(std::unique_ptr<TokenConstraint> constraint);
  // Whether only the end may follow.
  [[nodiscard]] bool is_complete() const { return constraint_ && constraint_->is_complete(); }
  // Null if there is no constraint.
  [[nodiscard]] TokenConstraint* constraint() const { return constraint_.get(); }
  // The work of all constraints so far, as TokenConstraint::work().
  [[nodiscard]] std::uint64_t grammar_work() const { return earlier_work_ + (constraint_ ? constraint_->work() : 0); }

  // Records a token of the prompt or the reply for the penalties and the constraint. Only the last tokens_counted() tokens of
  // a prompt have an effect.
  void accept(Token token);
  [[nodiscard]] std::size_t tokens_counted() const { return penalties_.window(); }

  // Returns a token of the vocabulary, or kNoToken if the constraint forbids all tokens. Changes `logits` (penalties, bias,
  // constraint). NaN is never chosen. O(V), plus O(c log c) for c candidates. Requires: a span that is not empty.
  [[nodiscard]] Token sample(std::span<float> logits);

  // Writes the probabilities of sample() after all cuts, with or without XTC by chance; one token for greedy sampling. Changes
  // `logits` too. Tokens below e^-48 of the best one's probability are left out, as in a draw. Empty if the constraint forbids
  // all tokens.
  void distribution(std::span<float> logits, Distribution& chances);

  // Chooses with the distribution of sample(), given that `drafted` was drawn from `draft`: see verify_drafted().
  [[nodiscard]] Token verify(std::span<float> logits, Token drafted, const Distribution& draft);

  // Returns a sampler for draft tokens that this one verifies: it has the same parameters and recorded tokens, no constraint,
  // its own random numbers and no mirostat, and draws from at most kDraftCandidates tokens, which bounds the stored
  // distributions.
  [[nodiscard]] Sampler drafting(std::uint64_t seed) const;
  static constexpr int kDraftCandidates = 64;

  [[nodiscard]] bool is_greedy() const { return params_.temperature <= 0; }

 private:
  // The cuts that the parameters ask for.
  struct Cuts {
    bool top_k = false;
    bool typical_p = false;
    bool top_p = false;
    bool min_p = false;
    bool xtc = false;
    [[nodiscard]] bool any() const { return top_k || typical_p || top_p || min_p || xtc; }
    // Whether the candidates depend on the mass of all allowed tokens, not only on ranks and distances from the best.
    [[nodiscard]] bool depend_on_mass() const { return !top_k && (typical_p || top_p || (xtc && !min_p)); }
  };

  struct Candidate {
    float logit;
    Token token;
  };

  void adjust(std::span<float> logits);
  // Takes adjusted logits.
  [[nodiscard]] Token choose(std::span<float> logits);
  // Chooses an allowed token and checks only a few candidates. kNoToken: no candidate was accepted, and some forbidden tokens
  // may have lost their logit.
  [[nodiscard]] Token choose_allowed(std::span<float> logits);
  // Removes the logits of forbidden candidates. True: all candidates are allowed.
  [[nodiscard]] bool are_all_allowed(std::span<float> logits);
  [[nodiscard]] Cuts cuts_of(std::size_t vocabulary) const;
  // Sets candidates_ to the result of all cuts, in their order. False: there is no cut.
  [[nodiscard]] bool cut(std::span<const float> logits, float best);
  // The first index of the largest logit `best`.
  [[nodiscard]] std::size_t index_of(std::span<const float> logits, float best) const;
  // Selects the logits from `threshold` on, sorted by token.
  void select_from(std::span<const float> logits, float threshold);
  void select_top_k(std::span<const float> logits, std::size_t k);
  // Selects the best logits until they have top_p of the total mass. Returns the total mass.
  [[nodiscard]] double select_top_p(std::span<const float> logits, float best);
  // Sorts by descending logit; equal logits by token.
  void sort_candidates();
  // A mass is a sum of e^(logit - best).
  [[nodiscard]] double mass_of_candidates() const;
  void cut_top_p(double total_mass);
  void cut_min_p();
  // Keeps the tokens whose surprise is nearest to its mean, until they have typical_p of the mass.
  void cut_typical_p();
  // Removes the tokens of at least xtc_threshold but the least likely of them.
  void cut_xtc();
  void cut_mirostat(std::span<const float> logits, float best);
  // The number of tokens that version 1 of mirostat keeps. Requires: candidates_ has the best tokens, sorted.
  [[nodiscard]] std::size_t mirostat_top_k(std::size_t vocabulary) const;
  [[nodiscard]] bool uses_mirostat() const { return params_.mirostat > 0 && !is_greedy(); }
  // Moves the cut of mirostat after a token of this probability was chosen.
  void observe_chance(double chance);
  [[nodiscard]] Token draw_from_candidates();
  [[nodiscard]] Token draw_from_all(std::span<const float> logits, float best);

  SamplingParams params_;
  std::vector<Token> banned_;
  Random random_;
  std::unique_ptr<TokenConstraint> constraint_;
  std::uint64_t earlier_work_ = 0;  // Work of the constraints before constraint_.
  RepetitionPenalties penalties_;
  double mirostat_mu_;  // The most bits of surprise that mirostat allows.
  // Reused by sample().
  std::vector<float> maxima_;  // Maximum of each block.
  std::vector<float> ranked_maxima_;
  std::vector<double> masses_;  // Mass of each block.
  std::vector<Candidate> candidates_;
  std::vector<Candidate> sorted_;
  Distribution wanted_;  // Reused by verify().
};

}  // namespace uma::llm
