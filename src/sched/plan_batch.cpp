#include "sched/plan_batch.h"

#include <algorithm>

namespace uma::sched {
namespace {

constexpr double kBackgroundWaitMaxMs = 10'000;

}  // namespace

std::int32_t ChunkSize::follow(std::int32_t rows_fitting) {
  if (rows_ == 0 || rows_fitting <= rows_) {
    rows_ = rows_fitting;
    ticks_larger_ = 0;
    return rows_;
  }
  rows_next_ = ticks_larger_ == 0 ? rows_fitting : std::min(rows_next_, rows_fitting);
  if (++ticks_larger_ == kTicksToGrow) {
    rows_ = rows_next_;
    ticks_larger_ = 0;
  }
  return rows_;
}

double prefill_rank(std::int32_t pending_tokens, double waited_ms, bool is_background, const StepModel& model) {
  const double rank = pending_tokens - waited_ms * model.prefill_tokens_per_ms();
  return is_background && waited_ms < kBackgroundWaitMaxMs ? rank + 1e12 : rank;
}

void plan_batch(std::span<const SequenceView> sequences, const StepModel& model, const BatchLimits& limits, ChunkSize& chunk,
                BatchPlan& plan) {
  plan.clear();
  StepShape decode;
  for (const SequenceView& view : sequences) {
    if (view.decodes && static_cast<std::int32_t>(plan.decode.size()) < limits.rows_max) {
      plan.decode.push_back({view.index, view.slot, 1});
      decode.add_decode(view.cached_tokens);
    }
  }

  const bool someone_decodes = !plan.decode.empty();
  const double tick_ms =
      someone_decodes ? std::max(limits.tick_ms, limits.tick_decodes_min * model.predict_ms(decode)) : limits.prefill_tick_ms;
  const std::int32_t rows_max = std::min(limits.rows_max, limits.ubatch_rows);

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

  std::int32_t rows_left = 0;
  if (!waiting.empty()) {
    const std::int32_t fitting = model.rows_within(tick_ms, waiting.front().view->cached_tokens, rows_max, decode);
    rows_left = std::max(fitting, std::min(kPrefillChunkMin, rows_max));
    if (someone_decodes) rows_left = chunk.follow(rows_left);
  }
  StepShape prefill;
  bool completes_prompts = !someone_decodes && model.prefill_tokens_per_ms() > 0;
  for (const Candidate& candidate : waiting) {
    const std::int32_t pending = candidate.view->pending_tokens;
    const std::int32_t cached = candidate.view->cached_tokens;
    StepShape whole = prefill;
    whole.add_chunk(pending, cached);
    completes_prompts =
        completes_prompts && whole.prefill_rows <= rows_max && model.predict_ms(whole) <= limits.whole_prompts_ms;
    std::int32_t rows = pending;
    if (!completes_prompts) {
      const std::int32_t rows_allowed = std::min(rows_left, pending);
      if (rows_allowed <= 0) break;
      rows = model.rows_within(tick_ms, cached, rows_allowed, decode, prefill);
      if (rows == 0 && plan.prefill.empty()) rows = std::min(kPrefillChunkMin, rows_allowed);
      if (rows == 0) break;
    }
    plan.prefill.push_back({candidate.view->index, candidate.view->slot, rows});
    prefill.add_chunk(rows, cached);
    rows_left -= rows;
  }

  std::ranges::sort(plan.decode, {}, &PlanRow::slot);
  std::ranges::sort(plan.prefill, {}, &PlanRow::slot);
}

}  // namespace uma::sched
