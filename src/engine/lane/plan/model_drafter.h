// Drafts tokens with a small draft model of the same vocabulary: speculative decoding as in Leviathan, Kalman, Matias (2023).
// Owns the draft model's context, which has one sequence for each slot of the lane. Owned by its lane, runs in its thread.
//
// Invariant: `cached_` of a slot is exactly what the context holds for it. It is compared with a sequence's chain token by
// token, so the lane need not report when another sequence takes the slot.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "core/error.h"
#include "core/ids.h"
#include "llm/model.h"
#include "llm/sampling/distribution.h"
#include "llm/sampling/sampler.h"
#include "sched/draft_control.h"
#include "sched/step_model.h"

namespace uma::engine {

// Checks that both vocabularies have the same tokens. Errors: E_MODEL_002 with the first difference.
[[nodiscard]] Expected<Unit> check_same_vocabulary(const llm::Vocab& model, const llm::Vocab& draft);

// The options of a draft model's context beside a context with `options`.
[[nodiscard]] llm::ContextOptions draft_context_options(llm::ContextOptions options);

// Makes a draft context for the sequences of `decodes`, with as many cells if the draft model was trained for them.
[[nodiscard]] Expected<std::unique_ptr<llm::Context>> make_draft_context(const llm::Model& draft,
                                                                         const llm::ContextShape& decodes,
                                                                         const llm::ContextOptions& options);

class ModelDrafter {
 public:
  // A decoding sequence without draft tokens.
  struct Candidate {
    std::size_t slot = 0;
    std::span<const Token> chain;  // Not empty.
    std::int32_t tokens_max = 0;   // Maximum number of draft tokens.
    const llm::Sampler* sampler = nullptr;
    std::uint64_t seed = 0;  // The request's seed.
    sched::DraftControl* control = nullptr;
    // Written: the draft tokens, and the distribution that each was drawn from; no distributions if the sampler is greedy.
    std::vector<Token>* draft = nullptr;
    std::vector<llm::Distribution>* distributions = nullptr;
  };
  // Costs of the model that verifies.
  struct Costs {
    double call_ms = 0;   // A decode call without draft tokens; 0: not known yet.
    double token_ms = 0;  // Value of one more token of a sequence.
    double row_ms = 0;    // Cost of one more row; 0: not known yet.
  };

  // `vocab` and `clock` outlive the drafter.
  ModelDrafter(std::unique_ptr<llm::Context> context, const llm::Vocab& vocab, const Clock& clock);

  // Writes draft tokens for the candidates for which they are likely to be faster, at most `rows_max` in all. A sequence with
  // many uncached tokens gets none: a part of its tokens is computed instead, in about a quarter of a decode call's time.
  void draft(std::span<const Candidate> candidates, const Costs& costs, std::int32_t rows_max, std::int32_t threads);

  // For tests.
  void check_invariants();
  [[nodiscard]] bool is_off() const { return is_off_; }

 private:
  // A candidate that gets draft tokens.
  struct Draft {
    const Candidate* candidate;
    std::int32_t wanted;
    llm::Sampler sampler;
    Random random;
  };

  void try_one(std::span<const Candidate> candidates);
  [[nodiscard]] std::int32_t fitting(const Candidate& candidate) const;
  [[nodiscard]] std::int32_t wanted_of(const Candidate& candidate, double token_ms, double row_ms) const;
  [[nodiscard]] double draft_token_ms(std::span<const Candidate> candidates, std::int32_t count) const;
  void choose(std::span<const Candidate> candidates, const Costs& costs, std::int32_t rows_max);
  [[nodiscard]] bool keep_common(const Candidate& candidate);
  void catch_up(const Candidate& candidate, double budget_ms);
  // Computes the next rows of each sequence in drafts_ that wants more, and draws one token for each.
  [[nodiscard]] bool extend();
  // Computes rows_. False: the call failed, and the caches of their sequences are empty.
  [[nodiscard]] bool run();
  void draw(Draft& draft, std::int32_t row);
  [[nodiscard]] bool drop_others();
  void drop(std::size_t slot);
  void turn_off(std::string_view reason);
  [[nodiscard]] std::int32_t missing(const Candidate& candidate) const;

  const llm::Vocab& vocab_;
  const Clock& clock_;
  std::unique_ptr<llm::Context> context_;
  std::vector<std::vector<Token>> cached_;  // Per slot.
  sched::StepModel step_model_{context_->shape().attention_share};
  std::vector<std::int32_t> wanted_;  // Per candidate.
  std::vector<Draft> drafts_;
  std::vector<llm::BatchRow> rows_;
  std::int32_t unwanted_ticks_ = 0;  // Since draft tokens were last worth their costs, or were last tried.
  std::int32_t pause_;               // Number of these ticks before the next try.
  std::int32_t threads_ = 0;
  bool is_off_ = false;  // The context has failed, or cannot drop the end of a sequence.
};

}  // namespace uma::engine
