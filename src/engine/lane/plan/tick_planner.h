// Decides what the next tick computes, and when it begins. Owned by the lane's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/plan/core_share.h"
#include "engine/lane/plan/latency_targets.h"
#include "llm/adapters.h"
#include "sched/bytes_moved.h"
#include "sched/plan_batch.h"
#include "sched/policy.h"

namespace uma::engine {

class TickPlanner {
 public:
  TickPlanner(const LaneParts& parts, LatencyTargets& targets, CoreShare& cores, const sched::BandwidthBudget& bandwidth)
      : parts_(parts),
        targets_(targets),
        cores_(cores),
        bandwidth_(bandwidth),
        turns_(parts.options.policy, parts.shape().sequences) {}

  // Makes the views of the running sequences that can be computed.
  void build_views(TimePoint now);
  [[nodiscard]] std::vector<sched::SequenceView>& views() { return views_; }
  // Whether a view decodes.
  [[nodiscard]] bool someone_decodes() const;
  // The time until which the tick is put off; absent: it begins now. Removes the views that the policy does not choose. Sets
  // for the prefill lane whether the streams are about to compute; `has_image`: an image is about to be computed.
  [[nodiscard]] std::optional<TimePoint> begin_tick(TimePoint now, bool has_image);
  // Beside streams, a tick computes rows of prompts or of an image, in turns. True: those of the image; the views of prompts
  // are removed. `is_alone`: the tick has no other rows.
  [[nodiscard]] bool is_turn_of_image(bool is_alone);
  // Chooses the rows of the tick. `spent_ms`: the part of the tick's time that is used already; `is_idle`: no time is left for
  // rows.
  [[nodiscard]] sched::BatchPlan& plan(double spent_ms, bool is_idle);
  // While the prefill lane computes, the streams' next tick is not before this time.
  void set_next_tick(TimePoint at) { next_tick_ = at; }

  // The maximum time of a tick: the shortest time between tokens that an interactive stream wants, minus its delay.
  [[nodiscard]] double tick_target_ms() const;
  // The place of a running sequence's prompt among others, of which `pending` tokens are still to be computed: sched's order.
  [[nodiscard]] double prompt_rank(const Sequence& sequence, std::int32_t pending, TimePoint now) const;
  // When the sequence's prompt is due; prompts with a due time go before others; kNever: it has none.
  [[nodiscard]] TimePoint prompt_due(const Sequence& sequence) const;

 private:
  // The pause before the first tick after an idle time.
  struct Gather {
    std::size_t sequences = 0;  // Arrived sequences; 0: the pause has not begun.
    TimePoint began{};
    TimePoint until{};
  };

  [[nodiscard]] std::int32_t group_of(const llm::AdapterSet& adapters);
  [[nodiscard]] double time_left_ms(const Sequence& sequence, TimePoint now) const;
  [[nodiscard]] bool should_gather(TimePoint now);

  const LaneParts& parts_;
  LatencyTargets& targets_;
  CoreShare& cores_;
  const sched::BandwidthBudget& bandwidth_;
  sched::TurnTaker turns_;
  sched::ChunkSize chunk_size_;
  sched::BatchPlan plan_;
  std::vector<sched::SequenceView> views_;
  // The adapters of each group of views. The first are those of the last call, so that the context keeps them for the next one.
  std::vector<llm::AdapterSet> groups_{1};
  double least_work_of_prompts_ = 0;  // The least work done for a tenant with a prompt among the views.
  TimePoint next_tick_{};
  bool image_was_last_ = false;  // The last turn was that of an image.
  Gather gather_;
};

}  // namespace uma::engine
