#include "sched/plan_batch.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace uma::sched {
namespace {

constexpr double kFirst = -1e12;  // Ranks of prompts whose first token is due.
constexpr double kLast = 4e12;

// The decode calls of a tick, one for each group.
class DecodeCalls {
 public:
  // `cells`: see StepShape::add_decode.
  DecodeCalls(const StepModel& model, std::int64_t cells) : model_(model), cells_(cells) {}

  void add(const SequenceView& view) {
    auto call = std::ranges::find(calls_, view.group, &Call::group);
    if (call == calls_.end()) call = calls_.insert(calls_.end(), {.group = view.group, .shape = {}});
    call->shape.add_decode(view.cached_tokens, 0, cells_);
  }
  // The guarded time of all calls together.
  [[nodiscard]] double ms() const { return (calls_.empty() ? 0 : model_.guarded_ms(calls_.front().shape)) + others_ms(); }
  // One of the calls; empty: there is none.
  [[nodiscard]] StepShape first() const { return calls_.empty() ? StepShape() : calls_.front().shape; }
  // The guarded time of all but the first.
  [[nodiscard]] double others_ms() const {
    double ms = 0;
    for (std::size_t i = 1; i < calls_.size(); ++i) ms += model_.guarded_ms(calls_[i].shape);
    return ms;
  }

 private:
  struct Call {
    std::int32_t group = 0;
    StepShape shape;
  };

  const StepModel& model_;
  const std::int64_t cells_;
  std::vector<Call> calls_;
};

// The rows of whole prompts in a call whose time is not known: the first one after a load whose warm-up was interrupted. With
// fewer, the first prompts of a burst become streams, beside which the others are computed slowly.
constexpr std::int32_t kUnknownRows = 4 * kFastChunk;

// A prompt that waits for its tokens to be computed.
struct Candidate {
  const SequenceView* view;
  double rank;  // A smaller rank goes first.
};

// The prompts of the first one's group, in their order.
std::vector<Candidate> ranked_prompts(std::span<const SequenceView> sequences, const StepModel& model) {
  std::vector<Candidate> waiting;
  for (const SequenceView& view : sequences) {
    if (!view.decodes) waiting.push_back({&view, prefill_rank(view, model)});
  }
  std::ranges::stable_sort(waiting, {}, &Candidate::rank);
  std::erase_if(waiting, [group = waiting.empty() ? 0 : waiting.front().view->group](const Candidate& candidate) {
    return candidate.view->group != group;
  });
  return waiting;
}

// Adds the decoding sequences of one class. `may_yield`: those that do not fit into the tick are left out.
void plan_decoding(std::span<const SequenceView> sequences, bool background, bool may_yield, const BatchLimits& limits,
                   DecodeCalls& decode, BatchPlan& plan) {
  for (const SequenceView& view : sequences) {
    if (!view.decodes || view.is_background != background) continue;
    if (static_cast<std::int32_t>(plan.decode.size()) == limits.rows_max) return;
    if (may_yield) {
      DecodeCalls with = decode;
      with.add(view);
      if (with.ms() > limits.tick_ms) return;
    }
    plan.decode.push_back({view.index, view.slot, view.group, 1});
    decode.add(view);
  }
}

// Divides the prompts at the fixed grid: BatchLimits::fixed_grid. Short prompts may share a call: the library computes their
// rows one by one.
void plan_on_grid(std::span<const Candidate> waiting, std::int32_t rows_left, std::int32_t rows_max, BatchPlan& plan) {
  const auto is_short = [](const SequenceView& view) {
    return view.pending_tokens < kFastChunk && view.cached_tokens + view.pending_tokens <= kDividedCells;
  };
  std::int32_t rows_planned = 0;
  for (const Candidate& candidate : waiting) {
    const SequenceView& view = *candidate.view;
    if (rows_planned > 0 && (!is_short(view) || rows_planned + view.pending_tokens > rows_left)) continue;
    const std::int32_t rows = std::min(grid_rows(view.pending_tokens, rows_left), rows_max);
    plan.prefill.push_back({view.index, view.slot, view.group, rows});
    rows_planned += rows;
    if (!is_short(view)) return;
  }
}

// The rows of a chunk that is late in any case. Behind many tokens, a chunk with the library's tiled attention takes hardly
// longer than the smallest one.
std::int32_t least_rows(const StepModel& model, std::int32_t cached, std::int32_t rows_max) {
  constexpr double kHardlyLonger = 1.5;
  const std::int32_t least = std::min(kPrefillChunkMin, rows_max);
  if (rows_max < kFastChunk) return least;
  return model.prefill_ms(kFastChunk, cached) <= kHardlyLonger * model.prefill_ms(least, cached) ? kFastChunk : least;
}

// Decides which prompts share a call that computes them whole while no one decodes. Asked in their order.
class SharedCall {
 public:
  SharedCall(const StepModel& model, const BatchLimits& limits) : model_(model), limits_(limits) {}

  // `whole`: the call with the prompt `last`.
  bool may_add(const SequenceView& last, const StepShape& whole) {
    if (model_.prefill_tokens_per_ms() == 0) return whole.prefill_rows <= kUnknownRows;
    const double ms = model_.predict_ms(whole);
    // One by one, short prompts would be computed beside the streams of earlier ones, with half of the threads: the mean time
    // to the first token would be the same, the longest twice as long. Background ones would
    // delay interactive ones that come later.
    const bool is_short = last.pending_tokens <= kFastChunk && !last.is_background && ms <= first_due_ms_;
    if (last.due_ms >= ms) first_due_ms_ = std::min(first_due_ms_, last.due_ms);
    return ms <= limits_.whole_prompts_ms || is_short;
  }

 private:
  const StepModel& model_;
  const BatchLimits& limits_;
  double first_due_ms_ = kNotDue;  // Earliest due time of the prompts whose first token can be in time.
};

// Fills the tick with the prompts in their order, at most `rows_left` rows beside `decode`. Whole prompts may take longer than
// a tick as long as no one decodes.
void plan_prompts(std::span<const Candidate> waiting, const StepModel& model, const BatchLimits& limits, double tick_ms,
                  const StepShape& decode, std::int32_t rows_left, std::int32_t rows_max, BatchPlan& plan) {
  StepShape prefill;
  bool completes_prompts = plan.decode.empty();
  SharedCall shared(model, limits);
  for (const Candidate& candidate : waiting) {
    // An interactive prompt's first token does not wait for background ones in the same call.
    if (candidate.rank > kLast / 2 && waiting.front().rank <= kLast / 2 && !plan.prefill.empty()) return;
    const std::int32_t pending = candidate.view->pending_tokens;
    const std::int32_t cached = candidate.view->cached_tokens;
    StepShape whole = prefill;
    whole.add_chunk(pending, cached);
    completes_prompts = completes_prompts && whole.prefill_rows <= rows_max && shared.may_add(*candidate.view, whole);
    std::int32_t rows = pending;
    if (!completes_prompts) {
      const std::int32_t rows_allowed = std::min(rows_left, pending);
      if (rows_allowed <= 0) return;
      rows = model.rows_within(tick_ms, cached, rows_allowed, decode, prefill);
      const bool is_late_anyway = rows == 0 && plan.prefill.empty();
      if (is_late_anyway) rows = std::min(least_rows(model, cached, rows_max), pending);
      if (rows == 0) return;
      // A separate call for a short remainder would cost more than its rows do here.
      const bool is_short = pending - rows < kPrefillChunkMin && whole.prefill_rows <= rows_max;
      if (is_short && (is_late_anyway || model.guarded_ms(decode, whole) <= tick_ms)) rows = pending;
    }
    plan.prefill.push_back({candidate.view->index, candidate.view->slot, candidate.view->group, rows});
    prefill.add_chunk(rows, cached);
    rows_left -= rows;
  }
}

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
  const double rank =
      is_due ? kFirst + to_spare_ms
             : view.pending_tokens - tokens_per_ms * std::max(view.placed_ms / kPatience, view.placed_ms - kPatienceMaxMs);
  return view.is_background && view.waited_ms < kBackgroundWaitMaxMs ? rank + kLast : rank;
}

std::int32_t aligned_rows(const StepModel& model, double budget_ms, std::int32_t cached, std::int32_t pending,
                          std::int32_t rows_max, std::int32_t rows_least) {
  constexpr std::int32_t kGrid = kFastChunk;
  if (pending <= kGrid) return pending;
  const std::int32_t rest = pending % kGrid;
  const bool is_alone =
      rest > 0 && (rest + kGrid > rows_max || model.prefill_ms(rest, cached) < model.prefill_ms(kGrid, cached));
  if (is_alone) return rest;
  const std::int32_t fitting = model.rows_within(budget_ms, cached, rows_max);
  const std::int32_t least = std::clamp((rows_max - rest) / kGrid * kGrid, kGrid, rows_least);
  const std::int32_t grid_rows = std::max((fitting - rest) / kGrid * kGrid, least);
  return std::min(rest + grid_rows, pending);
}

void plan_batch(std::span<const SequenceView> sequences, const StepModel& model, const BatchLimits& limits, ChunkSize& chunk,
                BatchPlan& plan) {
  plan.clear();
  DecodeCalls calls(model, limits.cells);
  plan_decoding(sequences, false, false, limits, calls, plan);
  const bool background_yields = !plan.decode.empty() && !limits.serves_background;
  plan_decoding(sequences, true, background_yields, limits, calls, plan);

  if (const std::vector<Candidate> waiting = ranked_prompts(sequences, model); !waiting.empty()) {
    const bool someone_decodes = !plan.decode.empty();
    const double tick_ms = someone_decodes ? limits.tick_ms - calls.others_ms() : limits.prefill_tick_ms;
    const StepShape decode = calls.first();
    const std::int32_t rows_max = std::min(limits.rows_max, limits.ubatch_rows);
    const std::int32_t fitting = model.rows_within(tick_ms, waiting.front().view->cached_tokens, rows_max, decode);
    std::int32_t rows_left = std::max(fitting, std::min(kPrefillChunkMin, rows_max));
    if (someone_decodes) rows_left = chunk.follow(rows_left);
    if (limits.fixed_grid) {
      plan_on_grid(waiting, rows_left, rows_max, plan);
    } else {
      plan_prompts(waiting, model, limits, tick_ms, decode, rows_left, rows_max, plan);
    }
  }

  std::ranges::sort(plan.decode, {}, [](const PlanRow& row) { return std::pair(row.group, row.slot); });
  std::ranges::sort(plan.prefill, {}, &PlanRow::slot);
}

}  // namespace uma::sched
