// The lane's queue: its waiting sequences, their deadlines, and the choice of the next one to place. Owned by the lane's
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "engine/lane/lane_command.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/move/context_shifter.h"
#include "engine/lane/move/preemption.h"
#include "engine/lane/move/slot_eviction.h"
#include "engine/lane/plan/placement.h"
#include "engine/lane/plan/prefix_finder.h"
#include "engine/lane/sequence_ends.h"
#include "sched/fair_share.h"
#include "sched/slot_shares.h"

namespace uma::engine {

class Admission {
 public:
  Admission(const LaneParts& parts, SlotEviction& eviction, SequenceEnds& ends, Preemption& preemption, ContextShifter& shifter,
            const PrefixFinder& finder, Placement& placement, std::shared_ptr<Mailbox<LaneCommand>> inbox)
      : parts_(parts),
        eviction_(eviction),
        ends_(ends),
        preemption_(preemption),
        shifter_(shifter),
        finder_(finder),
        placement_(placement),
        inbox_(std::move(inbox)) {}

  // Estimates the work that a new sequence brings, on which its place among the waiting ones depends.
  void note_arrival(Sequence& sequence);
  // Ends sequences past their timeout, and sequences past their deadline that have not been in a batch. Gives up reads of
  // shared states that take too long.
  void expire(TimePoint now);
  // When expire() may have something to do; kNever: nothing can expire.
  [[nodiscard]] TimePoint expires_at() const { return expires_at_; }
  // Places the sequences that are next. Order: urgent ones first; among those, swapped-out ones before new ones; then the
  // client for which the least work was done; then the one that has waited the longest for its size (highest response ratio
  // next: Brinch Hansen, 1971), so that a question in a conversation does not wait for all the documents before it; with policy
  // sequential the first to come. The first that does not get a slot blocks all behind it. One that lacks cells is overtaken by
  // those that fit, for kTurnMs; then it is the first, and generating sequences are swapped out for it, which get their turn
  // again in the same way. It is overtaken for longer while it waits for another's turn to end. A background sequence is
  // swapped out for an interactive one at once. While the prefill lane computes, long prompts leave one slot to short ones. A
  // tenant that has its share of the slots is passed over while the free ones are kept for others (sched::SlotShares).
  void admit(TimePoint now);
  // The first `count` waiting sequences in the order in which they are to be placed, as of now.
  [[nodiscard]] std::vector<const Sequence*> first_waiting(std::size_t count, TimePoint now) const;
  // The stored state that a sequence resumes from has been read, or reading has failed.
  void accept_fetched(FetchReport report);

 private:
  // `waits`: for a state that is being read or a prompt that is being computed; `overtaken`: it lacks cells or leaves the last
  // slot, and those behind it may go first; `no_share`: those of other tenants may; `holds_back`: they wait, too; `ended`:
  // without having been placed.
  enum class Outcome : std::uint8_t { placed, waits, holds_back, no_slot, no_share, overtaken, ended };
  // The requests and tenants that a round of admission has passed over.
  struct Passed {
    std::vector<RequestId> overtaken;
    std::vector<std::string> tenants;  // Tenants without a share in the free slots.
  };
  // The rank of the flow that was looked up last: neighbours in the queue often have the same one.
  struct RankOfFlow {
    const sched::Flow* flow = nullptr;
    sched::FairShare::Rank rank;
  };
  // The smallest goes first.
  using Order = std::tuple<bool, TimePoint, bool, sched::FairShare::Rank, double>;

  [[nodiscard]] Outcome try_to_place(Sequence& next, const Passed& passed, TimePoint now);
  [[nodiscard]] Sequence* next_waiting(TimePoint now, const Passed& passed) const;
  [[nodiscard]] Order order_of(const Sequence& sequence, TimePoint now, RankOfFlow& last) const;
  [[nodiscard]] TimePoint next_expiry() const;
  [[nodiscard]] bool waits_for_another(Sequence& sequence) const;
  [[nodiscard]] bool is_ready(Sequence& sequence, std::span<const RequestId> overtaken) const;
  [[nodiscard]] sched::SlotShares::Uses uses_of_slots(std::span<const RequestId> overtaken) const;
  [[nodiscard]] std::size_t slots_left(const Sequence& next, const Passed& passed, TimePoint now) const;
  [[nodiscard]] bool leaves_last_slot(const Sequence& next, const PrefixHit& hit, std::int32_t tokens, std::size_t left,
                                      TimePoint now) const;
  // The waiting sequences in the order in which they are to be placed.
  [[nodiscard]] std::vector<std::pair<Order, Sequence*>> sorted_queue(TimePoint now) const;
  void read_ahead(Sequence& sequence);
  void begin_fetch(Sequence& sequence, const PrefixHit& hit);
  void end_fetch(Sequence& sequence, FetchReport report);
  void fail_waiting(Sequence& sequence, std::int64_t position);
  void report_positions(TimePoint now);
  void report_position(Sequence& sequence, std::int64_t position);
  [[nodiscard]] double estimated_wait_ms(std::int64_t position) const;

  const LaneParts& parts_;
  SlotEviction& eviction_;
  SequenceEnds& ends_;
  Preemption& preemption_;
  ContextShifter& shifter_;
  const PrefixFinder& finder_;
  Placement& placement_;
  const std::shared_ptr<Mailbox<LaneCommand>> inbox_;  // The lane's, for states that have been read.
  TimePoint expires_at_ = kNever;                      // Nothing expires before; it may be too early.
};

}  // namespace uma::engine
