// Keeps the cells few that decode rows skip. The library looks at every cell up to the last used one for each row, also at
// those of idle conversations and at free ones between, so a stream beside them slows down (docs/decisions/0052). The time that
// this costs is a rent. When the rent has paid for moving cells down or for storing an idle conversation, that is done, so both
// together never cost more than twice the least possible. Owned by the lane's thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/move/slot_eviction.h"
#include "engine/lane/run/context_calls.h"

namespace uma::engine {

class KvCompactor {
 public:
  KvCompactor(const LaneParts& parts, ContextCalls& calls, SlotEviction& eviction);

  // Adds the rent of a decode call with so many rows, which took `ms`.
  void charge(std::int32_t rows, double ms);
  // Does a part of the work that is paid for, for a few ms. False: there is none.
  bool advance();

 private:
  bool work();
  bool move_cells(TimePoint until);
  bool begin_storing();
  void wait_after_failure();
  [[nodiscard]] std::int64_t skipped_by_all() const;
  [[nodiscard]] bool is_blocked(std::size_t slot) const;

  const LaneParts& parts_;
  ContextCalls& calls_;
  SlotEviction& eviction_;
  const bool is_enabled_;
  double rent_ms_ = 0;
  TimePoint pauses_until_{};  // After a failure.
};

}  // namespace uma::engine
