#include "engine/lane/cell_tidier.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace uma::engine {
namespace {

constexpr double kSliceMs = 4;  // For how long the streams wait.
constexpr double kNoMemoryMs = 10000;
constexpr std::int32_t kMovedAtOnce = 256;

}  // namespace

CellTidier::CellTidier(const LaneParts& parts, ContextCalls& calls, SlotEviction& eviction)
    : parts_(parts),
      calls_(calls),
      eviction_(eviction),
      is_enabled_(parts.shape().can_move_cells() && !parts.options.is_reproducible) {}

// The cells up to the last used one that belong to no running sequence.
std::int64_t CellTidier::skipped_by_all() const {
  auto cells = static_cast<std::int64_t>(parts_.slots.cells_top());
  for (const Slot& slot : parts_.slots) {
    if (slot.is_running) cells -= std::ssize(slot.tokens);
  }
  return cells;
}

void CellTidier::charge(std::int32_t rows) {
  if (!is_enabled_) return;
  const std::int64_t skipped = skipped_by_all();
  if (skipped < parts_.options.skipped_cells_max) return;
  rent_ms_ += static_cast<double>(rows) * static_cast<double>(skipped) * parts_.step_model.skipped_cell_ms();
}

bool CellTidier::advance() {
  if (!is_enabled_ || (!storing_ && rent_ms_ <= 0)) return false;
  const TimePoint until = parts_.clock.now() + from_ms(kSliceMs);
  if (!storing_ && move_cells(until)) return true;
  if (!storing_) begin_storing();
  if (!storing_) return false;
  store(until);
  return true;
}

// False: no cells were moved.
bool CellTidier::move_cells(TimePoint until) {
  if (static_cast<std::int64_t>(parts_.slots.cells_top()) - parts_.slots.cells_used() < parts_.options.skipped_cells_max) {
    return false;
  }
  const std::size_t cell_bytes = parts_.shape().kv_bytes_per_token;
  const auto room = parts_.pool.reserve(kMovedAtOnce * cell_bytes);
  if (!room) return false;
  std::optional<ContextCalls::PrefillPause> pause;
  bool has_moved = false;
  while (const auto range = parts_.slots.last_cells(kMovedAtOnce)) {
    const std::size_t bytes = (range->end - range->begin) * cell_bytes;
    const double price_ms = parts_.transfer.move_ms(bytes);
    const TimePoint began = parts_.clock.now();
    if (rent_ms_ < price_ms || !may_move(*range) || (has_moved && began >= until)) break;
    if (!pause) pause.emplace(calls_);
    rent_ms_ -= price_ms;
    has_moved = true;
    if (auto moved = parts_.slots.move_down(*range, parts_.pool); !moved) {
      log_warning("lane {}: cells of slot {} could not be moved ({}), so its last tokens are computed again",
                  parts_.options.index, range->slot, moved.error().message);
      break;
    }
    parts_.stats.moved_cells_total.add(range->end - range->begin);
    log_debug("lane {}: moved {} cells of slot {} in {:.1f} ms; {} of {} cells are used", parts_.options.index,
              range->end - range->begin, range->slot, to_ms(parts_.clock.now() - began), parts_.slots.cells_used(),
              parts_.slots.cells_top());
  }
  return has_moved;
}

// The state of a sequence that is being saved or loaded must not become shorter, which it does if moving cells fails.
bool CellTidier::may_move(const CellLedger::Range& range) const {
  const auto sequence = std::ranges::find_if(
      parts_.sequences, [&](const SequencePtr& each) { return each->is_running() && each->slot == range.slot; });
  return sequence == parts_.sequences.end() || !(*sequence)->is_blocked();
}

void CellTidier::begin_storing() {
  const auto price_ms = [&](std::size_t tokens) { return parts_.transfer.move_ms(tokens * parts_.shape().kv_bytes_per_token); };
  const auto tokens_min = static_cast<std::size_t>(parts_.options.skipped_cells_max);
  if (rent_ms_ < price_ms(tokens_min) || parts_.clock.now() < no_memory_until_) return;
  const auto index = eviction_.find_idle(tokens_min);
  if (!index) {
    rent_ms_ = 0;  // What nobody could save is not charged to conversations that become idle later.
    return;
  }
  const Slot& slot = parts_.slots[*index];
  if (rent_ms_ < price_ms(slot.tokens.size())) return;
  rent_ms_ -= price_ms(slot.tokens.size());
  if (auto save = eviction_.begin_store(*index)) {
    storing_ = Storing{.slot = *index, .uses = slot.uses, .last_used = slot.last_used, .save = std::move(*save)};
  } else {
    no_memory_until_ = parts_.clock.now() + from_ms(kNoMemoryMs);
  }
}

void CellTidier::store(TimePoint until) {
  const Slot& slot = parts_.slots[storing_->slot];
  const bool was_used = slot.is_running || slot.uses != storing_->uses || slot.last_used != storing_->last_used;
  if (was_used || slot.tokens.size() != storing_->save.tokens_count()) return stop();
  const ContextCalls::PrefillPause pause(calls_);
  const TimePoint began = parts_.clock.now();
  std::size_t bytes = 0;
  do {
    const auto saved = storing_->save.save_piece(parts_.context, static_cast<std::int32_t>(storing_->slot), parts_.pool);
    if (!saved) {
      log_warning("lane {}: the idle slot {} stays in the context: {}", parts_.options.index, storing_->slot,
                  saved.error().message);
      no_memory_until_ = began + from_ms(kNoMemoryMs);
      return stop();
    }
    bytes += *saved;
  } while (!storing_->save.is_complete() && parts_.clock.now() < until);
  parts_.transfer.observe_save(bytes, to_ms(parts_.clock.now() - began));
  if (!storing_->save.is_complete()) return;
  log_debug("lane {}: {} tokens of the idle slot {} have left the context", parts_.options.index, slot.tokens.size(),
            storing_->slot);
  eviction_.end_store(storing_->slot, storing_->save.take(parts_.pool));
  stop();
}

}  // namespace uma::engine
