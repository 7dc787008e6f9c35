#include "engine/lane/move/kv_compactor.h"

#include <algorithm>
#include <optional>

#include "base/log.h"
#include "base/thrown.h"

namespace uma::engine {
namespace {

constexpr double kSliceMs = 4;  // For how long the streams wait.
constexpr double kPauseMs = 10000;
constexpr std::int32_t kMovedAtOnce = 256;

}  // namespace

KvCompactor::KvCompactor(const LaneParts& parts, ContextCalls& calls, SlotEviction& eviction)
    : parts_(parts),
      calls_(calls),
      eviction_(eviction),
      is_enabled_(parts.shape().can_move_cells() && !parts.options.is_reproducible) {}

// The cells up to the last used one that belong to no running sequence.
std::int64_t KvCompactor::skipped_by_all() const {
  auto cells = static_cast<std::int64_t>(parts_.slots.cells_top());
  for (const Slot& slot : parts_.slots) {
    if (slot.is_running) cells -= std::ssize(slot.tokens);
  }
  return cells;
}

void KvCompactor::charge(std::int32_t rows, double ms) {
  if (!is_enabled_ || parts_.clock.now() < pauses_until_) return;
  const std::int64_t skipped = skipped_by_all();
  if (skipped < parts_.options.skipped_cells_max) return;
  const double cost_ms = static_cast<double>(rows) * static_cast<double>(skipped) * parts_.costs.step_model.skipped_cell_ms();
  rent_ms_ += std::min(cost_ms, ms);
}

bool KvCompactor::advance() {
  if (!eviction_.is_storing() && (!is_enabled_ || rent_ms_ <= 0)) return false;
  try {
    return work();
  } catch (...) {
    note_thrown();
    eviction_.give_up_store();
    wait_after_failure();
    return false;
  }
}

// Something failed: for a while nothing is charged.
void KvCompactor::wait_after_failure() {
  rent_ms_ = 0;
  pauses_until_ = parts_.clock.now() + from_ms(kPauseMs);
}

bool KvCompactor::work() {
  const TimePoint until = parts_.clock.now() + from_ms(kSliceMs);
  if (!eviction_.is_storing() && move_cells(until)) return true;
  if (!eviction_.is_storing() && !begin_storing()) return false;
  if (eviction_.waits_for_memory()) return false;
  const ContextCalls::PrefillPause pause(calls_);
  eviction_.continue_store(until);
  return true;
}

// False: no cells were moved.
bool KvCompactor::move_cells(TimePoint until) {
  const std::int64_t free = static_cast<std::int64_t>(parts_.slots.cells_top()) - parts_.slots.cells_used();
  if (free < parts_.options.skipped_cells_max) return false;
  const std::size_t cell_bytes = parts_.shape().kv_bytes_per_token;
  const auto room = parts_.states.pool().reserve(kMovedAtOnce * cell_bytes);
  if (!room) return false;
  std::optional<ContextCalls::PrefillPause> pause;
  bool has_moved = false;
  while (const auto range = parts_.slots.last_cells(kMovedAtOnce)) {
    const double price_ms = parts_.costs.transfer.move_ms((range->end - range->begin) * cell_bytes);
    if (rent_ms_ < price_ms || is_blocked(range->slot) || (has_moved && parts_.clock.now() >= until)) break;
    if (!pause) pause.emplace(calls_);
    has_moved = true;
    const TimePoint began = parts_.clock.now();
    if (auto moved = parts_.slots.move_down(*range, parts_.states.pool()); !moved) {
      log_warning("lane {}: cells of slot {} could not be moved ({}), so its last tokens are computed again",
                  parts_.options.index, range->slot, moved.error().message);
      wait_after_failure();
      break;
    }
    const double ms = to_ms(parts_.clock.now() - began);
    rent_ms_ -= std::max(price_ms, ms);
    parts_.stats().moved_cells_total.add(range->end - range->begin);
    log_debug("lane {}: moved {} cells of slot {} in {:.1f} ms; {} of {} cells are used", parts_.options.index,
              range->end - range->begin, range->slot, ms, parts_.slots.cells_used(), parts_.slots.cells_top());
  }
  return has_moved;
}

// The state of a sequence that is being saved or loaded must not become shorter, which it does if moving cells fails.
bool KvCompactor::is_blocked(std::size_t slot) const {
  return std::ranges::any_of(parts_.sequences.running(),
                             [&](const Sequence* sequence) { return sequence->slot == slot && sequence->is_blocked(); });
}

// False: nothing is worth storing, or has to wait.
bool KvCompactor::begin_storing() {
  const auto price_ms = [&](std::size_t tokens) {
    return parts_.costs.transfer.move_ms(tokens * parts_.shape().kv_bytes_per_token);
  };
  const auto tokens_min = static_cast<std::size_t>(parts_.options.skipped_cells_max);
  if (rent_ms_ < price_ms(tokens_min)) return false;
  // Without its cells, the last used one must be able to move down.
  const auto index = eviction_.find_idle(tokens_min);
  const auto last = parts_.slots.last_slot();
  if (!index || !last || (*last != *index && is_blocked(*last))) {
    rent_ms_ = 0;  // Rent that nobody could save is not charged to conversations that become idle later.
    return false;
  }
  const std::size_t tokens = parts_.slots[*index].tokens.size();
  if (rent_ms_ < price_ms(tokens)) return false;
  rent_ms_ -= price_ms(tokens);
  if (eviction_.begin_store(*index)) return true;
  wait_after_failure();
  return false;
}

}  // namespace uma::engine
