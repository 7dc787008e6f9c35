#include "engine/lane/move/state_transfers.h"

#include <algorithm>

namespace uma::engine {

bool StateTransfers::save() {
  slice_is_used_ = false;
  if (!parts_.sequences.someone_streams()) {
    bool has_saved = false;
    for (std::size_t saver = 0; saver < kSavers; ++saver) has_saved = save(saver) || has_saved;
    return has_saved;
  }
  if (moves_.is_wanted() && !moved_last_) return false;
  if (eviction_.is_waiting() || eviction_.is_copying() || eviction_.is_pressing()) slice_is_used_ = save(kIdle);
  for (std::size_t i = 0; i < kSavers && !slice_is_used_; ++i) {
    last_saver_ = (last_saver_ + 1) % kSavers;
    slice_is_used_ = save(last_saver_);
  }
  return slice_is_used_;
}

bool StateTransfers::save(std::size_t saver) {
  switch (saver) {
    case kPrefix:
      return prefix_copy_.advance();
    case kEarly:
      return writer_.advance();
    default:
      return compactor_.advance();
  }
}

bool StateTransfers::move() {
  moved_last_ = !slice_is_used_ && moves_.advance();
  return moved_last_;
}

TimePoint StateTransfers::next_wake() const {
  constexpr double kLookAgainMs = 10;
  const TimePoint again = eviction_.is_waiting() ? parts_.clock.now() + from_ms(kLookAgainMs) : kNever;
  return std::min(again, writer_.next_wake());
}

void StateTransfers::give_up() {
  eviction_.give_up();
  prefix_copy_.give_up();
  writer_.give_up();
}

}  // namespace uma::engine
