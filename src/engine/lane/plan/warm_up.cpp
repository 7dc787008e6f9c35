#include "engine/lane/plan/warm_up.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "base/trace.h"
#include "llm/sampling/logits.h"
#include "sched/step_model.h"

namespace uma::engine {
namespace {

constexpr std::int32_t kMeasuredRounds = 3;
constexpr std::size_t kCellsMax = 1024;
constexpr double kLargeMaxMs = 500;  // Limit of a large prompt, by the time of a small one.
constexpr double kShortMs = 250;     // Limit of a call on a device for which a request waits.
constexpr double kHoldMaxMs = 1000;  // Limit of all such calls, without those that come first of their kind.
// Beside programs that use more cores, threads wait for each other, and the times do not hold for a quiet machine.
constexpr double kOthersMax = 0.3;
constexpr Duration kLoadTime = std::chrono::milliseconds(100);  // Shorter times do not show it (CpuLoad).

constexpr TraceKind kWarmUpSpan{.name = "warm up", .numbers = {"rows"}};

}  // namespace

WarmUp::WarmUp(const LaneParts& parts, ContextCalls& calls, Token token) : parts_(parts), calls_(calls), token_(token) {
  const llm::ContextShape& shape = parts.shape();
  if (!parts.options.warms_up) return;
  holds_requests_ = parts.options.is_on_devices;
  const std::int32_t prompt = std::min({sched::kFastChunk, shape.batch_rows_max, shape.sequence_cells_max});
  steps_.push_back({.is_first = true});
  const auto compute_prompt = [&](std::int32_t rows) {
    steps_.push_back({.rows = rows, .is_first = true});
    steps_.push_back({.rows = rows});
  };
  compute_prompt(prompt);
  if (parts.options.is_on_devices) {
    // Two sizes show which part of a call does not depend on its rows.
    compute_prompt(std::min({shape.ubatch_rows_max, shape.batch_rows_max, shape.sequence_cells_max}));
    steps_.push_back({.rows = prompt});
  }
  for (std::int32_t width = 1; width <= std::min(shape.sequences, shape.logits_rows_max); ++width) {
    steps_.push_back({.sequences = width});
  }
  warming_ = steps_.size();
  using sched::WidthCosts;
  if (std::min({shape.batch_rows_max, shape.logits_rows_max, shape.sequence_cells_max}) < WidthCosts::kWidths) return;
  if (take_kept()) return;
  for (std::int32_t round = 0; round < kMeasuredRounds; ++round) {
    for (std::int32_t rows = 1; rows <= WidthCosts::kWidths; ++rows) steps_.push_back({.rows = rows, .is_measured = true});
  }
}

std::optional<std::int32_t> WarmUp::room() const {
  const llm::ContextShape& shape = parts_.shape();
  if (!shape.can_truncate) return std::nullopt;
  // A row of a pool looks at all cells up to the last used one.
  if (shape.is_unified && parts_.slots.cells_top() > kCellsMax) return std::nullopt;
  if (shape.is_unified && shape.cells - parts_.slots.cells_used() < sched::WidthCosts::kWidths) return std::nullopt;
  const auto slot = parts_.slots.find_empty();
  return slot ? std::optional(static_cast<std::int32_t>(*slot)) : std::nullopt;
}

bool WarmUp::take_kept() {
  if (parts_.options.widths == nullptr) return false;
  calls_.set_decode_threads();
  const auto kept = parts_.options.widths->find(parts_.context.state_identity(), calls_.threads());
  if (!kept) return false;
  parts_.costs.step_model.set_width_costs(*kept);
  log_info("lane {}: the times of decode calls are known from an earlier start", parts_.options.index);
  return true;
}

void WarmUp::keep_widths() {
  const LaneOptions& options = parts_.options;
  if (options.widths == nullptr) return;
  const bool can_tell = options.others_busy_while_measured && parts_.clock.now() - measured_since_ >= kLoadTime;
  const auto busy = can_tell ? options.others_busy_while_measured() : std::optional<double>();
  if (busy && *busy > kOthersMax) {
    log_info("lane {}: the times of decode calls are not kept: other programs used {:.1f} cores", options.index, *busy);
    return;
  }
  options.widths->keep(parts_.context.state_identity(), measured_threads_, width_ms_);
}

void WarmUp::take_width(std::int32_t rows, double ms) {
  double& least = width_ms_[static_cast<std::size_t>(rows - 1)];
  least = least > 0 ? std::min(least, ms) : ms;
  const auto round = static_cast<std::size_t>(sched::WidthCosts::kWidths);
  const bool is_worth_taking = next_ == warming_ + round || next_ == steps_.size();  // After the first round, and the last.
  const bool all_took_time = std::ranges::all_of(width_ms_, [](double time) { return time > 0; });
  if (!is_worth_taking || !all_took_time) return;
  parts_.costs.step_model.set_width_costs(width_ms_);
  if (next_ == steps_.size()) keep_widths();
}

void WarmUp::advance() {
  calls_.set_decode_threads();
  if (steps_[next_].is_measured && std::exchange(measured_threads_, calls_.threads()) != calls_.threads()) {
    width_ms_ = {};
    next_ = warming_;
    if (take_kept()) {
      next_ = steps_.size();
      return;
    }
    measured_since_ = parts_.clock.now();
    // keep_widths() asks about the time since this call.
    if (parts_.options.others_busy_while_measured) (void)parts_.options.others_busy_while_measured();
  }
  const Step step = steps_[next_++];
  if (step.rows > sched::kFastChunk && parts_.costs.step_model.prefill_ms(step.rows, 0) > kLargeMaxMs) return;
  const std::int32_t first = step.is_measured ? *room() : 0;
  const Token token = token_;
  rows_.clear();
  sched::StepShape shape;
  for (std::int32_t sequence = first; sequence < first + step.sequences; ++sequence) {
    for (std::int32_t position = 0; position < step.rows; ++position) {
      rows_.push_back({.token = token,
                       .position = position,
                       .sequence = sequence,
                       .wants_logits = step.is_measured || position + 1 == step.rows});
    }
    step.rows == 1 ? shape.add_decode(0) : shape.add_chunk(step.rows, 0);
  }
  const std::span<const RequestId> interruptible(&kId, holds_requests_ ? 0 : 1);
  const auto status =
      calls_.run(false, {}, interruptible, [&](llm::CallMonitor* monitor) { return parts_.context.decode(rows_, monitor); });
  const bool is_complete = status && *status == llm::DecodeStatus::done;
  if (is_complete && !step.is_first && !step.is_measured) {
    parts_.costs.step_model.observe(shape, calls_.last().ms());
    held_ms_ += calls_.last().ms();
    holds_requests_ = holds_requests_ && calls_.last().ms() <= kShortMs && held_ms_ <= kHoldMaxMs;
  }
  const bool is_sound = is_complete && llm::are_sound(parts_.context.logits(static_cast<std::int32_t>(rows_.size()) - 1));
  for (std::int32_t sequence = first; sequence < first + step.sequences; ++sequence) (void)parts_.context.truncate(sequence, 0);
  if (is_complete && !is_sound) calls_.set_unsound();
  if (is_sound && step.is_measured) take_width(step.rows, calls_.last().ms());
  const bool is_interrupted = status && *status == llm::DecodeStatus::interrupted;
  if (!is_sound) next_ = is_interrupted && step.is_measured ? next_ - 1 : is_interrupted ? warming_ : steps_.size();
  record_span(kWarmUpSpan, calls_.last().began, calls_.last().ended, {static_cast<std::int64_t>(rows_.size())});
  log_debug("lane {}: a warm-up call of {} rows took {:.2f} ms", parts_.options.index, rows_.size(), calls_.last().ms());
}

}  // namespace uma::engine
