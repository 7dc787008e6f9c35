// Keeps the cells few that decode rows skip. The library looks at every cell up to the last used one for each row, also at
// those of idle conversations and at free ones between, so a stream beside them slows down (docs/decisions/0052). The time that
// this costs is a rent. When the rent has paid for moving cells down or for storing an idle conversation, that is done, so both
// together never cost more than twice the least possible. Owned by the lane's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "engine/lane/context_calls.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/slot_eviction.h"
#include "engine/lane/state_transfer.h"

namespace uma::engine {

class CellTidier {
 public:
  CellTidier(const LaneParts& parts, ContextCalls& calls, SlotEviction& eviction);

  // Adds the rent of a decode call with so many rows.
  void charge(std::int32_t rows);
  // Does a part of the work that is paid for, for a few ms. False: there is none.
  bool advance();
  // Gives up a state that is not stored completely.
  void stop() { storing_.reset(); }

 private:
  // An idle slot whose state is being stored, and its uses when that began.
  struct Storing {
    std::size_t slot = 0;
    std::uint32_t uses = 0;
    TimePoint last_used{};
    SequenceSave save;
  };

  bool move_cells(TimePoint until);
  void begin_storing();
  void store(TimePoint until);
  [[nodiscard]] std::int64_t skipped_by_all() const;
  [[nodiscard]] bool may_move(const CellLedger::Range& range) const;

  const LaneParts& parts_;
  ContextCalls& calls_;
  SlotEviction& eviction_;
  const bool is_enabled_;
  double rent_ms_ = 0;
  std::optional<Storing> storing_;
  TimePoint no_memory_until_{};
};

}  // namespace uma::engine
