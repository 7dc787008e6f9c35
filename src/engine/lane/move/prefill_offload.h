// Offloads long prompts to the prefill lane and takes them back (docs/decisions/0011). Owned by the lane's thread.
#pragma once

#include <memory>

#include "engine/lane/lane_parts.h"
#include "engine/lane/move/preemption.h"
#include "engine/lane/plan/core_share.h"
#include "engine/lane/plan/tick_planner.h"
#include "engine/lane/run/batch_runner.h"
#include "engine/lane/run/prefill_lane.h"

namespace uma::engine {

class PrefillOffload {
 public:
  // `prefill`: null while there is no prefill lane.
  PrefillOffload(const LaneParts& parts, TickPlanner& planner, Preemption& preemption, BatchRunner& runner, CoreShare& cores,
                 const std::unique_ptr<PrefillLane>& prefill)
      : parts_(parts), planner_(planner), preemption_(preemption), runner_(runner), cores_(cores), prefill_(prefill) {}

  // Offloads the prompts among the planner's views that would delay the streams beside them, or, if there are no streams, later
  // requests; but not prompts whose state takes as long to move. An image leaves sooner, since its rows are one call. A prompt
  // with cached tokens leaves when its slot is saved.
  void offload_long_prompts();
  // Takes a report of the prefill lane about a part of a prompt or its end.
  void accept(PrefillReport report);

 private:
  [[nodiscard]] bool is_long(const sched::SequenceView& view, double stay_ms) const;
  [[nodiscard]] double longest_image_ms(const Sequence& sequence, std::int32_t cached, std::int32_t end) const;
  [[nodiscard]] std::int32_t end_of_offload(const Sequence& sequence, std::int32_t cells) const;
  [[nodiscard]] bool offload(Sequence& sequence);
  void accept_prompt(Sequence& sequence, PrefillReport report);

  const LaneParts& parts_;
  TickPlanner& planner_;
  Preemption& preemption_;
  BatchRunner& runner_;
  CoreShare& cores_;
  const std::unique_ptr<PrefillLane>& prefill_;
};

}  // namespace uma::engine
