#include "engine/lane/plan/lane_activity.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "sched/recent_work.h"

namespace uma::engine {
namespace {

SlotState state_of(const Sequence& sequence) {
  if (sequence.is_on<Restore>()) return SlotState::restore;
  return sequence.generated() == 0 ? SlotState::prefill : SlotState::decode;
}

}  // namespace

// The rest of a lane is published in any case: it makes no steps then, in which it could be asked.
void LaneActivityBoard::note_step(bool did_work) {
  const bool rests = !did_work && parts_.sequences.is_empty();
  const std::int64_t cells = parts_.slots.cells_used();
  const bool begins_to_rest = rests && cells != std::exchange(cells_at_rest_, cells);
  if (!rests) cells_at_rest_ = kNotAtRest;
  const TimePoint now = parts_.clock.now();
  if (!begins_to_rest && (rests || now < due_)) return;
  due_ = now + kEvery;
  parts_.tenants.recent_work.age(now);
  if (begins_to_rest || demand_.is_wanted(now)) board_.publish(std::make_shared<const LaneActivity>(look(now)));
}

LaneActivity LaneActivityBoard::look(TimePoint now) const {
  LaneActivity activity;
  activity.as_of = now;
  activity.worker.contract_ms = targets_.default_tbt_ms();
  for (const auto& [tenant, work] : parts_.tenants.recent_work.tenants())
    add_activity(activity.tenants, tenant, {.work = work});
  add_slots(activity);
  add_waiting(activity, now);
  return activity;
}

void LaneActivityBoard::add_slots(LaneActivity& activity) const {
  std::vector<SlotActivity>& slots = activity.worker.slots;
  for (std::size_t i = 0; i < std::min(parts_.slots.size(), kSlotsShownMax); ++i) {
    slots.push_back({.slot = static_cast<std::int32_t>(i), .tokens = size_of(parts_.slots[i].tokens)});
  }
  for (Sequence* sequence : parts_.sequences.running()) {
    add_activity(activity.tenants, sequence->job.flow.tenant, {.sequences_active = 1});
    if (sequence->slot >= slots.size()) continue;
    SlotActivity& slot = slots[sequence->slot];
    slot.state = state_of(*sequence);
    slot.request = sequence->job.id;
    slot.tenant = sequence->job.flow.tenant;
    slot.agent = sequence->job.agent;
    slot.prompt_tokens = sequence->prompt_tokens;
    if (const Offloaded* offloaded = sequence->offloaded())
      slot.tokens = std::max<std::int64_t>(slot.tokens, offloaded->tokens);
  }
}

void LaneActivityBoard::add_waiting(LaneActivity& activity, TimePoint now) const {
  for (const Sequence* sequence : parts_.sequences.waiting()) {
    add_activity(activity.tenants, sequence->job.flow.tenant, {.queue_depth = 1});
  }
  for (const Sequence* sequence : admission_.first_waiting(kWaitingShownMax, now)) {
    const GenerationJob& job = sequence->job;
    activity.worker.waiting.push_back({.request = job.id,
                                       .model = {},
                                       .tenant = job.flow.tenant,
                                       .agent = job.agent,
                                       .is_background = job.is_background,
                                       .stage = sequence->was_placed() ? WaitStage::swapped : WaitStage::queued,
                                       .since = job.received});
  }
}

}  // namespace uma::engine
