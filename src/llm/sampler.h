// Chooses the next token of one sequence from its logits. One per generation; owned by its lane.
// Order, as in llama.cpp: logit bias and end-of-generation ban, penalties over the last 64 tokens, top-k, top-p, min-p,
// temperature, draw. Never sorts the vocabulary: candidates are preselected by a threshold first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"
#include "core/ids.h"
#include "core/sampling_params.h"

namespace uma::llm {

class Sampler {
 public:
  // `banned` are tokens that are never chosen (the end-of-generation tokens where ignore_eos is set). Tokens of
  // params.logit_bias and `banned` that are outside the vocabulary are passed over.
  Sampler(const SamplingParams& params, std::uint64_t seed, std::span<const Token> banned);

  // Notes a token of the chain, prompt or reply, for the penalties.
  void accept(Token token);

  // Returns a token of the vocabulary whose logits these are. Writes into `logits` (penalties, bias). NaN never wins. O(V),
  // plus O(c log c) for c candidates. Requires a non-empty span.
  [[nodiscard]] Token sample(std::span<float> logits);

 private:
  struct Candidate {
    float logit;
    Token token;
  };

  void adjust(std::span<float> logits);
  void select_top_k(std::span<const float> logits, std::size_t k);
  void select_all_above(std::span<const float> logits, float threshold);
  // Selects the best logits, at least until they hold top_p of the whole mass, which it returns: only these need sorting.
  [[nodiscard]] double select_window(std::span<const float> logits, float best);
  // Masses are sums of exp(logit - best).
  [[nodiscard]] double mass_of_candidates(float best) const;
  void cut_top_p(double total_mass);
  void cut_min_p();
  [[nodiscard]] Token draw_from_candidates();
  [[nodiscard]] Token draw_from_all(std::span<const float> logits, std::size_t best_index);

  SamplingParams params_;
  std::vector<Token> banned_;
  Random random_;
  std::vector<Token> recent_;  // ring of the last kPenaltyWindow tokens
  std::size_t recent_next_ = 0;
  std::vector<std::pair<Token, int>> counts_;  // reused by adjust()
  std::vector<Candidate> candidates_;          // reused by sample()
};

}  // namespace uma::llm
