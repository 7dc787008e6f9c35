// Gives a waiting sequence its slot and begins to fill it with reused tokens. Owned by the lane's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/move/slot_eviction.h"
#include "engine/lane/plan/prefix_finder.h"
#include "engine/lane/run/reuse_check.h"

namespace uma::engine {

class Placement {
 public:
  Placement(const LaneParts& parts, SlotEviction& eviction, ReuseCheck& reuse_check)
      : parts_(parts), eviction_(eviction), reuse_check_(reuse_check) {}

  // Called before the sequence's state is read from disk: evicts the state in the slot that the sequence will need, before its
  // own state takes memory. False: the eviction has to wait.
  [[nodiscard]] bool evict_ahead(const Sequence& sequence);
  // Cells that running sequences must free before the chain fits, if all idle slots are evicted; 0 or less: it fits.
  [[nodiscard]] std::int64_t cells_missing(const Sequence& sequence, const PrefixHit& hit) const;
  // Places the sequence. False: all slots are in use, or the state in the one that it would get has to be stored first.
  // Requires: no cells are missing.
  [[nodiscard]] bool place(Sequence& sequence, PrefixHit hit, TimePoint now);

 private:
  [[nodiscard]] std::optional<std::size_t> choose_slot(const Sequence& sequence, const PrefixHit& hit);
  [[nodiscard]] bool free_cells(const Sequence& sequence, std::size_t index, PrefixHit& hit);
  [[nodiscard]] std::int64_t cells_needed(const Sequence& sequence, std::size_t index, const PrefixHit& hit) const;
  void enter_slot(Sequence& sequence, std::size_t index);
  void fill_slot(Sequence& sequence, const PrefixHit& hit);
  void copy_slot(std::size_t from, std::size_t to, std::size_t count, bool is_one_shot);
  void write_receipt(Sequence& sequence, const PrefixHit& hit, bool had_tokens);

  const LaneParts& parts_;
  SlotEviction& eviction_;
  ReuseCheck& reuse_check_;
};

}  // namespace uma::engine
