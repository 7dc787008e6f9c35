#include "sched/plan_batch.h"

#include <algorithm>

namespace uma::sched {
namespace {

constexpr double kFirst = -1e12;  // Ranks of prompts whose first token is due.
constexpr double kLast = 4e12;

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

double prefill_rank(const SequenceView& view, const StepModel& model) {
  const double tokens_per_ms = model.prefill_tokens_per_ms();
  const double to_spare_ms = tokens_per_ms > 0 ? view.due_ms - view.pending_tokens / tokens_per_ms : view.due_ms;
  const bool is_due = view.due_ms != kNotDue && to_spare_ms >= 0;
  const double rank = is_due ? kFirst + to_spare_ms : view.pending_tokens - view.placed_ms * tokens_per_ms;
  return view.is_background && view.waited_ms < kBackgroundWaitMaxMs ? rank + kLast : rank;
}

void plan_batch(std::span<const SequenceView> sequences, const StepModel& model, const BatchLimits& limits, ChunkSize& chunk,
                BatchPlan& plan) {
  plan.clear();
  StepShape decode;
  const auto add_decoding = [&](bool background, bool may_yield) {
    for (const SequenceView& view : sequences) {
      if (!view.decodes || view.is_background != background) continue;
      if (static_cast<std::int32_t>(plan.decode.size()) == limits.rows_max) return;
      StepShape with = decode;
      with.add_decode(view.cached_tokens);
      if (may_yield && model.guarded_ms(with) > limits.tick_ms) return;
      plan.decode.push_back({view.index, view.slot, 1});
      decode = with;
    }
  };
  add_decoding(false, false);
  add_decoding(true, !plan.decode.empty() && !limits.serves_background);

  const bool someone_decodes = !plan.decode.empty();
  const double tick_ms = someone_decodes ? limits.tick_ms : limits.prefill_tick_ms;
  const std::int32_t rows_max = std::min(limits.rows_max, limits.ubatch_rows);

  struct Candidate {
    const SequenceView* view;
    double rank;  // A smaller rank goes first.
  };
  std::vector<Candidate> waiting;
  for (const SequenceView& view : sequences) {
    if (view.decodes) continue;
    waiting.push_back({&view, prefill_rank(view, model)});
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
  if (limits.fixed_grid && !waiting.empty()) {
    // Short prompts may share a call: the library computes their rows one by one.
    const auto is_short = [](const SequenceView& view) {
      return view.pending_tokens < kFastChunk && view.cached_tokens + view.pending_tokens <= kDividedCells;
    };
    std::int32_t rows_planned = 0;
    for (const Candidate& candidate : waiting) {
      const SequenceView& view = *candidate.view;
      if (rows_planned > 0 && (!is_short(view) || rows_planned + view.pending_tokens > rows_left)) continue;
      const std::int32_t rows = std::min(grid_rows(view.pending_tokens, rows_left), rows_max);
      plan.prefill.push_back({view.index, view.slot, rows});
      rows_planned += rows;
      if (!is_short(view)) break;
    }
    waiting.clear();
  }
  for (const Candidate& candidate : waiting) {
    // An interactive prompt's first token does not wait for background ones in the same call.
    if (candidate.rank > kLast / 2 && waiting.front().rank <= kLast / 2 && !plan.prefill.empty()) break;
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
      const bool is_late_anyway = rows == 0 && plan.prefill.empty();
      if (is_late_anyway) rows = std::min(kPrefillChunkMin, rows_allowed);
      if (rows == 0) break;
      // A separate call for a short remainder would cost more than its rows do here.
      const bool is_short = pending - rows < kPrefillChunkMin && whole.prefill_rows <= rows_max;
      if (is_short && (is_late_anyway || model.guarded_ms(decode, whole) <= tick_ms)) rows = pending;
    }
    plan.prefill.push_back({candidate.view->index, candidate.view->slot, rows});
    prefill.add_chunk(rows, cached);
    rows_left -= rows;
  }

  std::ranges::sort(plan.decode, {}, &PlanRow::slot);
  std::ranges::sort(plan.prefill, {}, &PlanRow::slot);
}

}  // namespace uma::sched
