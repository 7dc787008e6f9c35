#include "engine/lane/plan/tick_planner.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"

namespace uma::engine {
namespace {

constexpr std::uint64_t kBackgroundEvery = 4;  // In ticks: after so many, background streams are served even if time is short.
constexpr double kGatherMaxMs = 5;
constexpr double kGatherQuietMs = 1;

}  // namespace

void TickPlanner::build_views(TimePoint now) {
  least_work_of_prompts_ = std::numeric_limits<double>::infinity();
  for (const Sequence* sequence : parts_.sequences.running()) {
    if (sequence->generated() > 0) continue;
    least_work_of_prompts_ = std::min(least_work_of_prompts_, parts_.tenants.shares.rank(sequence->job.flow).tenant_work);
  }
  views_.clear();
  groups_.resize(1);
  bool is_scored = false;  // The log probabilities of one prompt at a time are computed.
  for (const Sequence* running : parts_.sequences.running()) {
    const Sequence& sequence = *running;
    if (sequence.is_blocked()) continue;
    const std::int32_t cached = parts_.cached(sequence);
    std::int32_t pending = size_of(sequence.chain) - cached;
    UMA_CHECK(pending >= 1);
    if (sequence.lacks_prompt_logprobs()) {
      if (std::exchange(is_scored, true)) continue;
      // Every row has logits, and so may the last row of each other prompt.
      pending = std::min(pending, std::max(1, parts_.shape().logits_rows_max - parts_.shape().sequences));
    }
    views_.push_back({.id = sequence.job.id.value,
                      .index = parts_.sequences.index_of(sequence),
                      .slot = static_cast<std::int32_t>(sequence.slot),
                      .group = group_of(sequence.job.adapters),
                      .pending_tokens = pending,
                      .cached_tokens = cached,
                      .decodes = pending == 1 && sequence.generated() > 0,
                      .is_background = sequence.job.is_background,
                      .waited_ms = to_ms(now - sequence.job.received),
                      .placed_ms = to_ms(now - sequence.times.placed),
                      .due_ms = time_left_ms(sequence, now)});
  }
  std::vector<bool> decodes(groups_.size());
  for (const sched::SequenceView& view : views_) {
    if (view.decodes) decodes[static_cast<std::size_t>(view.group)] = true;
  }
  targets_.set_decode_calls(std::max(1, static_cast<std::int32_t>(std::ranges::count(decodes, true))));
}

std::int32_t TickPlanner::group_of(const llm::AdapterSet& adapters) {
  const auto found = std::ranges::find(groups_, adapters);
  const auto group = static_cast<std::int32_t>(found - groups_.begin());
  if (found == groups_.end()) groups_.push_back(adapters);
  return group;
}

bool TickPlanner::someone_decodes() const {
  return std::ranges::any_of(views_, &sched::SequenceView::decodes);
}

std::optional<TimePoint> TickPlanner::begin_tick(TimePoint now, bool has_image) {
  cores_.set_decode_busy(!views_.empty() || has_image);
  if (should_gather(now)) return gather_.until;
  if (now < next_tick_ && someone_decodes() && cores_.takes_turns()) return next_tick_;
  const TimePoint free_at = TimePoint() + from_ms(bandwidth_.free_at_ms());
  if (now < free_at && !views_.empty()) return free_at;
  const auto wait_ms = turns_.select(views_, to_ms(now.time_since_epoch()));
  return wait_ms ? std::optional(now + from_ms(*wait_ms)) : std::nullopt;
}

bool TickPlanner::is_turn_of_image(bool is_alone) {
  if (is_alone) return image_was_last_ = true;
  const auto is_prompt = [](const sched::SequenceView& view) { return !view.decodes; };
  if (!someone_decodes() || std::ranges::none_of(views_, is_prompt)) return true;
  image_was_last_ = !image_was_last_;
  if (image_was_last_) std::erase_if(views_, is_prompt);
  return image_was_last_;
}

// Requests that arrive together should be computed together, but they come through the queue one by one. After an idle time the
// first tick therefore waits until no request has come for a moment, at most a twentieth of the tick's expected time.
bool TickPlanner::should_gather(TimePoint now) {
  const bool is_fresh = std::ranges::none_of(parts_.sequences, [](const SequencePtr& sequence) { return sequence->in_batch; });
  if (views_.empty() || !is_fresh) {
    gather_ = {};
    return false;
  }
  if (gather_.sequences != parts_.sequences.size()) {
    std::int32_t pending = 0;
    for (const sched::SequenceView& view : views_) pending += view.pending_tokens;
    if (gather_.sequences == 0) gather_.began = now;
    const double tick_ms = parts_.costs.step_model.prefill_ms(pending, 0);
    const TimePoint latest = gather_.began + from_ms(std::min(kGatherMaxMs, tick_ms / 20));
    gather_.sequences = parts_.sequences.size();
    gather_.until = std::min(now + from_ms(kGatherQuietMs), latest);
  }
  return now < gather_.until;
}

sched::BatchPlan& TickPlanner::plan(double spent_ms, bool is_idle) {
  sched::BatchLimits limits;
  limits.rows_max = parts_.shape().batch_rows_max;
  limits.ubatch_rows = parts_.shape().ubatch_rows_max;
  limits.cells = static_cast<std::int64_t>(parts_.slots.cells_top());
  limits.tick_ms = tick_target_ms() - spent_ms;
  limits.fixed_grid = parts_.options.is_reproducible;
  limits.serves_background = parts_.stats().ticks_total.value() % kBackgroundEvery == 0;
  if (is_idle) views_.clear();
  sched::plan_batch(views_, parts_.costs.step_model, limits, chunk_size_, plan_);
  if (!plan_.is_empty()) {
    const sched::PlanRow& last = plan_.prefill.empty() ? plan_.decode.back() : plan_.prefill.back();
    std::swap(groups_.front(), groups_[static_cast<std::size_t>(last.group)]);
  }
  return plan_;
}

double TickPlanner::tick_target_ms() const {
  double target_ms = std::numeric_limits<double>::infinity();
  for (const sched::SequenceView& view : views_) {
    const Sequence& sequence = parts_.sequences.at(view.index);
    if (!view.decodes || sequence.job.is_background) continue;
    const double wanted_ms = targets_.planned_tbt_ms(sequence);
    target_ms = std::min(target_ms, wanted_ms - std::clamp(sequence.times.gap_ms - wanted_ms, 0.0, wanted_ms / 2));
  }
  return target_ms != std::numeric_limits<double>::infinity() ? target_ms : targets_.default_tbt_ms();
}

double TickPlanner::time_left_ms(const Sequence& sequence, TimePoint now) const {
  const TimePoint due = prompt_due(sequence);
  return due == kNever || sequence.generated() > 0 ? sched::kNotDue : to_ms(due - now);
}

double TickPlanner::prompt_rank(const Sequence& sequence, std::int32_t pending, TimePoint now) const {
  return sched::prefill_rank({.pending_tokens = pending,
                              .is_background = sequence.job.is_background,
                              .waited_ms = to_ms(now - sequence.job.received),
                              .placed_ms = to_ms(now - sequence.times.placed),
                              .due_ms = time_left_ms(sequence, now)},
                             parts_.costs.step_model);
}

// A client's target orders the prompts of its tenant, and puts them before prompts of tenants for which as much work was done.
// It takes nothing from a tenant for which less was done.
TimePoint TickPlanner::prompt_due(const Sequence& sequence) const {
  const bool has_turn = parts_.tenants.shares.rank(sequence.job.flow).tenant_work <= least_work_of_prompts_;
  return has_turn ? targets_.first_token_due(sequence) : kNever;
}

}  // namespace uma::engine
