// The latency targets of a lane's sequences: time to the first token, and time between tokens.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "engine/lane/lane_options.h"
#include "engine/lane/sequence.h"
#include "sched/step_model.h"

namespace uma::engine {

class LatencyTargets {
 public:
  LatencyTargets(const LaneOptions& options, const sched::StepModel& step_model) : options_(options), step_model_(step_model) {}

  // Sets the number of decode calls of a tick, `count` >= 1: one for each set of adapters.
  void set_decode_calls(std::int32_t count) { decode_calls_ = count; }
  [[nodiscard]] std::int32_t decode_calls() const { return decode_calls_; }
  // The target of streams whose requests name none: the larger of tick_ms and three decode calls; on devices also a decode
  // call and an efficient chunk of a prompt, up to 100 ms (docs/decisions/0088).
  [[nodiscard]] double default_tbt_ms() const {
    if (options_.target_tbt_ms > 0) return options_.target_tbt_ms;
    const double decode_ms = step_model_.decode_ms() * decode_calls_;
    const double usual_ms = std::max(options_.tick_ms, 3 * decode_ms);
    if (!options_.is_on_devices) return usual_ms;
    // A device computes a few rows of a prompt in hardly less time than some hundred.
    constexpr double kEfficientMaxMs = 100;
    return std::max(usual_ms, std::min(decode_ms + step_model_.efficient_prefill_ms(), kEfficientMaxMs));
  }
  // The target between two tokens of the sequence.
  [[nodiscard]] double tbt_ms(const Sequence& sequence) const {
    // At least half of the default, because shorter ticks leave too little time for prompts.
    const double wanted_ms = sequence.job.target_tbt_ms;
    return wanted_ms > 0 ? std::max(wanted_ms, default_tbt_ms() / 2) : default_tbt_ms();
  }
  // The time between two tokens for which ticks are planned. Where no setting and no client names a target, streams of a fast
  // model do not wait for dozens of their own steps while a prompt is computed, which gains nothing by longer ticks.
  [[nodiscard]] double planned_tbt_ms(const Sequence& sequence) const {
    const double target_ms = tbt_ms(sequence);
    const double decode_ms = step_model_.decode_ms() * decode_calls_;
    const bool is_named = options_.target_tbt_ms > 0 || sequence.job.target_tbt_ms > 0;
    if (is_named || options_.is_on_devices || decode_ms == 0) return target_ms;
    return std::min(target_ms, std::max(options_.tick_ms / 2, 4 * decode_ms));
  }
  // kNever: there is no target.
  [[nodiscard]] TimePoint first_token_due(const Sequence& sequence) const {
    const double wanted_ms = sequence.job.target_ttft_ms > 0 ? sequence.job.target_ttft_ms : options_.target_ttft_ms;
    return wanted_ms > 0 ? sequence.job.received + from_ms(wanted_ms) : kNever;
  }

 private:
  const LaneOptions& options_;
  const sched::StepModel& step_model_;
  std::int32_t decode_calls_ = 1;
};

}  // namespace uma::engine
