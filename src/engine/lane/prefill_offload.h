// Offloads long prompts to the prefill lane and takes them back (docs/decisions/0011). Owned by the lane's thread.
#pragma once

#include "engine/lane/batch_runner.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/preemption.h"
#include "engine/lane/reply_sampler.h"
#include "engine/lane/tick_planner.h"

namespace uma::engine {

class PrefillOffload {
 public:
  PrefillOffload(const LaneParts& parts, SequenceEnds& ends, TickPlanner& planner, Preemption& preemption,
                 ReplySampler& sampler, BatchRunner& runner)
      : parts_(parts), ends_(ends), planner_(planner), preemption_(preemption), sampler_(sampler), runner_(runner) {}

  // Offloads the prompts among the planner's views that would delay the streams beside them, or, if there are no streams, later
  // requests; but not prompts whose state takes as long to move.
  void offload_long_prompts();
  // Saves slots whose prompts are offloaded, while streams wait for a short time only. Returns whether there was any.
  [[nodiscard]] bool advance();
  // Takes a report of the prefill lane about a part of a prompt or its end.
  void accept(PrefillReport report);

 private:
  [[nodiscard]] bool is_long(const sched::SequenceView& view, double stay_ms) const;
  [[nodiscard]] std::int32_t end_of_offload(const Sequence& sequence) const;
  [[nodiscard]] bool offload(Sequence& sequence);
  void save(Sequence& sequence, TimePoint until);
  void post(Sequence& sequence, PrefillJob job);
  void accept_prompt(Sequence& sequence, PrefillReport report);

  const LaneParts& parts_;
  SequenceEnds& ends_;
  TickPlanner& planner_;
  Preemption& preemption_;
  ReplySampler& sampler_;
  BatchRunner& runner_;
};

}  // namespace uma::engine
