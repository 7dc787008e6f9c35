// Adds draft tokens to decode rows and verifies them. Owned by the lane's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/plan/model_drafter.h"
#include "engine/lane/run/context_calls.h"
#include "engine/lane/run/reply_sampler.h"
#include "sched/draft_allotment.h"
#include "sched/draft_balance.h"
#include "sched/plan_batch.h"

namespace uma::engine {

class Speculation {
 public:
  Speculation(const LaneParts& parts, ContextCalls& calls, ReplySampler& sampler)
      : parts_(parts), calls_(calls), sampler_(sampler) {}

  // Call it before the first step. The drafter's model drafts tokens where a sequence's own text has no draft that is
  // worthwhile.
  void use_model(std::unique_ptr<ModelDrafter> drafter) { drafter_ = std::move(drafter); }
  // Adds draft tokens to the decode rows of a call where they are likely to be faster, and rows that make the call cheaper.
  void add_drafts(std::span<sched::PlanRow> decode);
  // Padding rows that make the call faster: one in each of so many idle slots behind the last row's slot. 0 if there are draft
  // tokens. Valid after add_drafts().
  [[nodiscard]] std::int32_t padding() const { return padding_; }
  // Samples from the rows of a sequence one after another, as long as the draft token after a row equals the sampled one. The
  // tokens are those that would be sampled without a draft, with the same random numbers. Draft tokens that the draft model has
  // drawn at random are accepted at random: the tokens may differ, but have the same distribution. Drops the cells of rejected
  // tokens.
  void verify(Sequence& sequence, std::int32_t row, std::int32_t rows, TimePoint now);
  // The decode calls with the rows of add_drafts() took `ms`, and their rows were verified.
  void settle(double ms);
  void check_invariants() {
    if (drafter_) drafter_->check_invariants();
  }

 private:
  static void clear_draft(Draft& draft);
  [[nodiscard]] std::int32_t tokens_possible(const Sequence& sequence, std::int32_t rows_left) const;
  void draft_from_text(std::span<const sched::PlanRow> decode, std::int32_t rows_left);
  void find_in_text(Sequence& sequence, std::int32_t tokens_max);
  void draft_from_model(std::span<const sched::PlanRow> decode, std::int32_t rows_left);
  void try_once(std::int32_t rows_max);
  [[nodiscard]] bool allot(std::span<const sched::PlanRow> decode, std::int32_t rows_max);
  void choose_padding(std::span<const sched::PlanRow> decode);
  [[nodiscard]] double expected_ms(std::int32_t more_rows) const;
  [[nodiscard]] std::int32_t drafted(std::span<const sched::PlanRow> decode) const;
  [[nodiscard]] std::int32_t sample_rows(Sequence& sequence, std::int32_t row, std::int32_t rows, TimePoint now);

  const LaneParts& parts_;
  ContextCalls& calls_;
  ReplySampler& sampler_;
  std::unique_ptr<ModelDrafter> drafter_;  // Null: there is no draft model.
  std::vector<ModelDrafter::Candidate> candidates_;
  std::vector<sched::DraftOffer> offers_;  // One for each planned row.
  sched::DraftBalance balance_;
  // Figures of the last add_drafts().
  sched::StepShape plain_;  // The planned rows without draft tokens,
  double plain_ms_ = 0;     // and their expected time with padding.
  std::int32_t padding_ = 0;
  double drafting_ms_ = 0;  // Time of the draft model.
  std::int32_t more_rows_ = 0;
  bool has_drafted_ = false;
  std::int32_t accepted_ = 0;  // By verify() since then.
};

}  // namespace uma::engine
