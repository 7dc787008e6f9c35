// Shortens chains that fill their context: chooses the turns to drop, and removes them from slot and chain. Owned by the lane's
// thread.
#pragma once

#include <optional>

#include "engine/lane/lane_parts.h"
#include "engine/lane/sequence_ends.h"
#include "engine/session/context_shift.h"

namespace uma::engine {

class ContextShifter {
 public:
  ContextShifter(const LaneParts& parts, SequenceEnds& ends) : parts_(parts), ends_(ends) {}

  // The turns that the sequence would drop now: enough for its input and the rest of its reply, but at most a quarter of the
  // cells. Absent: there are no turns to drop.
  [[nodiscard]] std::optional<TurnDrop> droppable_turns(const Sequence& sequence) const;
  [[nodiscard]] bool is_full(const Sequence& sequence) const {
    return size_of(sequence.chain) >= parts_.shape().sequence_cells_max;
  }
  // Drops turns if the chain is full. The sequence ends if its client does not take the event about it.
  void shorten(Sequence& sequence);
  // Shortens all running sequences whose chain is full.
  void shorten_running();

 private:
  void drop_from_slot(std::size_t index, const Sequence& sequence, const TurnDrop& drop);
  void drop_from_chain(Sequence& sequence, const TurnDrop& drop);

  const LaneParts& parts_;
  SequenceEnds& ends_;
};

}  // namespace uma::engine
