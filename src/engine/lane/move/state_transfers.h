// Gives the parts that save and load states their time. While streams wait for their next tokens, one of them works in a tick,
// for one slice. If requests wait for states (StateMoves), every second slice is theirs. Of the others a state has the first
// claim whose slot or copy is waited for; what stays in the context or leaves it unasked takes turns. Owned by the lane's
// thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/move/early_writer.h"
#include "engine/lane/move/kv_compactor.h"
#include "engine/lane/move/prefix_copy.h"
#include "engine/lane/move/slot_eviction.h"
#include "engine/lane/move/state_moves.h"

namespace uma::engine {

class StateTransfers {
 public:
  StateTransfers(const LaneParts& parts, SlotEviction& eviction, PrefixCopy& prefix_copy, EarlyWriter& writer,
                 KvCompactor& compactor, StateMoves& moves)
      : parts_(parts), eviction_(eviction), prefix_copy_(prefix_copy), writer_(writer), compactor_(compactor), moves_(moves) {}

  // Called once in a tick, before move(). True: something was saved.
  bool save();
  // True: something was moved for a request.
  bool move();
  // When save() has something to do; kNever: nothing is due.
  [[nodiscard]] TimePoint next_wake() const;
  void give_up();

 private:
  enum Saver : std::uint8_t { kPrefix, kEarly, kIdle };
  static constexpr std::size_t kSavers = 3;
  bool save(std::size_t saver);

  const LaneParts& parts_;
  SlotEviction& eviction_;
  PrefixCopy& prefix_copy_;
  EarlyWriter& writer_;
  KvCompactor& compactor_;
  StateMoves& moves_;
  std::size_t last_saver_ = 0;
  bool slice_is_used_ = false;  // save() has used that of this tick.
  bool moved_last_ = false;     // move() has used that of the last tick.
};

}  // namespace uma::engine
