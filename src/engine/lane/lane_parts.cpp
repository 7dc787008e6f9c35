#include "engine/lane/lane_parts.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "base/trace.h"

namespace uma::engine {
namespace {

constexpr TraceKind kSaveSpan{.name = "save", .numbers = {"bytes"}};

}  // namespace

std::int64_t LaneParts::cells_reserved() const {
  std::int64_t cells = slots.cells_used();
  for (const Sequence* sequence : sequences.running()) cells += size_of(sequence->chain) - cached(*sequence);
  return cells;
}

std::int64_t LaneParts::cells_of_running(std::span<const Sequence* const> except, CellLedger::Part also) const {
  std::vector<CellLedger::Part> used = {also};
  std::int64_t to_come = 0;
  for (const Sequence* sequence : sequences.running()) {
    if (std::ranges::contains(except, sequence)) continue;
    used.push_back({.slot = sequence->slot, .count = slot_of(*sequence).tokens.size()});
    to_come += size_of(sequence->chain) - cached(*sequence);
  }
  return slots.cells_of(used) + to_come;
}

std::int64_t LaneParts::cells_expected() const {
  std::int64_t cells = slots.cells_used();
  for (const Sequence* sequence : sequences.running()) {
    if (const Restore* restore = sequence->restoring()) cells += restore->tokens_loaded_at_end() - cached(*sequence);
  }
  return cells;
}

Expected<Unit> LaneParts::save_pieces(SequenceSave& save, std::size_t slot, TimePoint until) const {
  const TimePoint began = clock.now();
  std::size_t bytes = 0;
  do {
    if (until != kNever && waits_for_memory(save, slot)) break;
    const auto saved = save.save_piece(context, static_cast<std::int32_t>(slot), states.pool());
    if (!saved) return std::unexpected(saved.error());
    bytes += *saved;
    if (std::exchange(save.wants_memory_since, kNever) != kNever) ++save.memory_missed;
  } while (!save.is_complete() && clock.now() < until);
  if (bytes == 0) return Unit{};
  const TimePoint ended = clock.now();
  record_span(kSaveSpan, began, ended, {static_cast<std::int64_t>(bytes)});
  stats().saved_bytes_total.add(bytes);
  costs.transfer.observe_save(bytes, to_ms(ended - began));
  return Unit{};
}

void LaneParts::drop_unsaved(SequenceSave& save, std::size_t slot, std::size_t cells) const {
  const std::size_t left = drop_last(slot, cells, save.tokens_saved());
  if (left > 0) save.shorten(left);
}

std::size_t LaneParts::drop_last(std::size_t slot, std::size_t cells, std::size_t kept) const {
  const std::size_t length = slots[slot].tokens.size();
  std::size_t left = std::max(kept, length - std::min(cells, length));
  while (left > kept && !context.can_truncate(static_cast<std::int32_t>(slot), static_cast<std::int32_t>(left))) --left;
  return slots.cut(slot, left) ? left : 0;
}

bool LaneParts::waits_for_memory(SequenceSave& save, std::size_t slot) const {
  constexpr Duration kMemoryWait = std::chrono::milliseconds(20);  // Then the lane takes it from the system.
  constexpr int kMissedMax = 5;
  kv::BytePool& pool = states.pool();
  const std::size_t bytes = save.next_bytes(context, static_cast<std::int32_t>(slot));
  if (options.store == nullptr || pool.has(bytes) || !pool.can_keep(bytes, 1) || save.memory_missed == kMissedMax ||
      !sequences.someone_streams()) {
    save.wants_memory_since = kNever;
    return false;
  }
  if (save.wants_memory_since == kNever) {
    save.wants_memory_since = clock.now();
    options.store->want(bytes);
  }
  return clock.now() < save.wants_memory_since + kMemoryWait;
}

kv::Keep LaneParts::keep_of(std::int32_t tokens, std::uint64_t bytes) const {
  if (tokens < kReusedMin) return kv::Keep::in_memory;
  // In reproducible mode computing again may give other bits.
  const bool is_faster =
      options.is_reproducible || options.store->read_ms(bytes) + costs.transfer.load_ms(bytes) <= costs.compute_ms(tokens, 0);
  return is_faster ? kv::Keep::anywhere : kv::Keep::in_memory;
}

kv::PrefixQuery LaneParts::prefix_query_of(const Sequence& sequence) const {
  return {.family = states.family_of(sequence.job.adapters),
          .tenant = TenantId{sequence.job.flow.tenant},
          .session = sequence.job.session,
          .forked_from = sequence.job.forked_from,
          .takes_others = !options.is_reproducible};
}

std::string_view log_name(const SessionId& session) {
  return session.empty() ? std::string_view("-") : std::string_view(session.value);
}

}  // namespace uma::engine
