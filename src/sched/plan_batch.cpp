#include "sched/plan_batch.h"

#include <algorithm>
#include <cmath>

namespace uma::sched {
namespace {

constexpr double kBackgroundWaitMaxMs = 10'000;

// Prompt tokens that fit into `budget_ms`, in steps the library likes; at least the minimum progress.
std::int32_t rows_within(double budget_ms, const StepModel& model, std::int32_t rows_max) {
  if (model.prefill_tokens_per_ms() == 0)
    return std::min(rows_max, kPrefillGrid);  // nothing measured yet: a careful first chunk
  std::int32_t rows = std::min(rows_max, kPrefillChunkMin);
  while (rows < rows_max) {
    const std::int32_t step = rows < kPrefillGrid ? kPrefillChunkMin : kPrefillGrid;
    const std::int32_t larger = std::min(rows_max, rows + step);
    if (model.prefill_ms(larger) > budget_ms) break;
    rows = larger;
  }
  return rows;
}

}  // namespace

double prefill_rank(std::int32_t pending_tokens, double waited_ms, bool is_background, const StepModel& model) {
  const double rank = pending_tokens - waited_ms * model.prefill_tokens_per_ms();
  return is_background && waited_ms < kBackgroundWaitMaxMs ? rank + 1e12 : rank;
}

void plan_batch(std::span<const SequenceView> sequences, const StepModel& model, const BatchLimits& limits, BatchPlan& plan) {
  plan.clear();
  for (const SequenceView& view : sequences) {
    if (view.decodes && static_cast<std::int32_t>(plan.decode.size()) < limits.rows_max)
      plan.decode.push_back({view.index, view.slot, 1});
  }

  const bool someone_decodes = !plan.decode.empty();
  const double budget_ms =
      someone_decodes ? std::max(limits.tick_ms, 3 * model.decode_ms()) - model.decode_ms() : limits.prefill_tick_ms;
  const std::int32_t rows_max = std::min(limits.rows_max, limits.ubatch_rows);
  const std::int32_t rows_budget = rows_within(budget_ms, model, rows_max);

  struct Candidate {
    const SequenceView* view;
    double rank;  // smaller goes first
  };
  std::vector<Candidate> waiting;
  for (const SequenceView& view : sequences) {
    if (view.decodes) continue;
    waiting.push_back({&view, prefill_rank(view.pending_tokens, view.waited_ms, view.is_background, model)});
  }
  std::ranges::stable_sort(waiting, {}, &Candidate::rank);
  std::int32_t rows_planned = 0;
  bool completes_prompts = !someone_decodes && model.prefill_tokens_per_ms() > 0;
  for (const Candidate& candidate : waiting) {
    const std::int32_t pending = candidate.view->pending_tokens;
    const std::int32_t whole = rows_planned + pending;
    completes_prompts = completes_prompts && whole <= rows_max && model.prefill_ms(whole) <= limits.whole_prompts_ms;
    const std::int32_t rows = completes_prompts ? pending : std::min(rows_budget - rows_planned, pending);
    if (rows <= 0) break;
    plan.prefill.push_back({candidate.view->index, candidate.view->slot, rows});
    rows_planned += rows;
  }

  std::ranges::sort(plan.decode, {}, &PlanRow::slot);
  std::ranges::sort(plan.prefill, {}, &PlanRow::slot);
}

}  // namespace uma::sched
