// Moves states into slots and out of them, a few pieces in each tick: stored states and computed prompts are loaded, and slots
// are saved whose prompts go to the prefill lane, or whose sequences are swapped out. Owned by the lane's thread.
#pragma once

#include "base/clock.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/move/preemption.h"
#include "engine/lane/plan/tick_planner.h"
#include "engine/lane/run/context_calls.h"
#include "engine/lane/run/reply_sampler.h"
#include "engine/lane/run/reuse_check.h"
#include "engine/lane/sequence_ends.h"

namespace uma::engine {

class StateMoves {
 public:
  StateMoves(const LaneParts& parts, ContextCalls& calls, ReuseCheck& reuse_check, SequenceEnds& ends, ReplySampler& sampler,
             TickPlanner& planner, Preemption& preemption)
      : parts_(parts),
        calls_(calls),
        reuse_check_(reuse_check),
        ends_(ends),
        sampler_(sampler),
        planner_(planner),
        preemption_(preemption) {}

  // Moves at least one piece, of a sequence that gives its slot to another one or else the most urgent prompt's first: for a
  // few ms if a sequence waits for its next token, else for as long as a new request may wait for its first one. A sequence
  // whose state is complete joins the next tick. False: there was nothing to move.
  bool advance();
  [[nodiscard]] bool is_wanted() const;

 private:
  void move(Sequence& sequence, TimePoint until);
  void save(Sequence& sequence, TimePoint until);
  void save_swapped(Sequence& sequence, TimePoint until);
  void load(Sequence& sequence, TimePoint until);
  void refuse(Sequence& sequence, const Error& error);
  void end_load(Sequence& sequence);
  void count_restored(const Sequence& sequence, const Restore& restore);

  const LaneParts& parts_;
  ContextCalls& calls_;
  ReuseCheck& reuse_check_;
  SequenceEnds& ends_;
  ReplySampler& sampler_;
  TickPlanner& planner_;
  Preemption& preemption_;
};

}  // namespace uma::engine
