#include "engine/lane/plan/placement.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/lane/move/state_transfer.h"

namespace uma::engine {

bool Placement::evict_ahead(const Sequence& sequence) {
  const bool has_slot = parts_.slots.find_of(sequence.job.session) || parts_.slots.find_empty();
  if (has_slot) return true;
  if (const auto least = eviction_.least_valuable_slot(Slot::kNowhere, 0)) (void)eviction_.evict(*least, kv::GiveWay::by_disk);
  return !eviction_.is_waiting();
}

// Chooses the session's own slot, else an unowned slot that the sequence takes over, else the lowest empty slot, else the idle
// one with which least is lost.
std::optional<std::size_t> Placement::choose_slot(const Sequence& sequence, const PrefixHit& hit) {
  if (const auto own = parts_.slots.find_of(sequence.job.session)) return own;
  const bool is_slot = hit.kind == PrefixHit::Kind::slot;
  if (is_slot && hit.takes_over) return hit.slot;
  if (const auto empty = parts_.slots.find_empty()) return empty;
  const auto least =
      eviction_.least_valuable_slot(is_slot ? hit.slot : Slot::kNowhere, static_cast<std::size_t>(hit.tokens_count));
  if (!least) return std::nullopt;
  if (is_slot && *least == hit.slot) {
    // It keeps the tokens of the hit and gets a new owner; its earlier owner's state is stored.
    if (!eviction_.store_by_disk(hit.slot, SlotEviction::Then::stays, static_cast<std::size_t>(hit.tokens_count)))
      return std::nullopt;
    parts_.slots.disown(hit.slot);
  } else if (!eviction_.evict(*least, kv::GiveWay::by_disk)) {
    return std::nullopt;
  }
  return least;
}

// The cells for the whole chain, beside those of other slots, in a unified context. A hit in another slot shares its cells.
std::int64_t Placement::cells_needed(const Sequence& sequence, std::size_t index, const PrefixHit& hit) const {
  const std::int64_t reserved = parts_.cells_reserved();
  std::int64_t cells = reserved + size_of(sequence.chain) + 1 - size_of(parts_.slots[index].tokens);
  if (hit.kind == PrefixHit::Kind::slot && hit.slot != index) cells -= hit.tokens_count;
  return hit.is_loaded() ? std::max<std::int64_t>(cells, reserved + hit.stored.tokens_stored) : cells;
}

std::int64_t Placement::cells_missing(const Sequence& sequence, const PrefixHit& hit) const {
  if (!parts_.shape().is_unified) return 0;
  // The tokens of the hit are in cells already, which running sequences may share.
  const CellLedger::Part reused = hit.kind == PrefixHit::Kind::slot
                                      ? CellLedger::Part{.slot = hit.slot, .count = static_cast<std::size_t>(hit.tokens_count)}
                                      : CellLedger::Part{};
  const std::int64_t added = size_of(sequence.chain) + 1 - static_cast<std::int64_t>(reused.count);
  const std::int64_t beside_all = parts_.cells_reserved() + added - parts_.shape().cells;
  if (beside_all <= 0) return beside_all;  // Usually; counting shared cells takes a pass over all of them.
  return parts_.cells_of_running({}, reused) + added - parts_.shape().cells;
}

// Frees cells for the chain: those of other idle slots first, then what the hit's slot has beyond the hit. Drops the hit if the
// chain needs fewer cells without it. False: there are too few cells.
bool Placement::free_cells(const Sequence& sequence, std::size_t index, PrefixHit& hit) {
  if (!parts_.shape().is_unified) return true;
  while (cells_needed(sequence, index, hit) > parts_.shape().cells) {
    if (reuse_check_.abandon()) continue;
    const bool is_slot = hit.kind == PrefixHit::Kind::slot;
    const std::size_t spared[] = {index, hit.slot};
    if (eviction_.evict_idle(kv::GiveWay::by_disk, is_slot ? std::span(spared) : std::span(spared).first(1))) continue;
    if (eviction_.is_waiting() || hit.kind == PrefixHit::Kind::none || hit.is_slot(index)) return false;
    if (is_slot && !parts_.slots[hit.slot].is_running) {
      if (!eviction_.store_by_disk(hit.slot, SlotEviction::Then::stays)) return false;
      const bool is_longer = size_of(parts_.slots[hit.slot].tokens) > hit.tokens_count;
      if (is_longer && parts_.slots.cut(hit.slot, static_cast<std::size_t>(hit.tokens_count))) {
        parts_.slots.disown(hit.slot);
        continue;
      }
      parts_.slots.clear(hit.slot);
    }
    hit = {};
  }
  return true;
}

bool Placement::place(Sequence& sequence, PrefixHit hit, TimePoint now) {
  const auto index = choose_slot(sequence, hit);
  if (!index) return false;
  const Slot& slot = parts_.slots[*index];
  const bool had_tokens = !slot.is_empty() && slot.owner.session == sequence.job.session;
  if (!parts_.slots.cut(*index, hit.is_slot(*index) ? static_cast<std::size_t>(hit.tokens_count) : 0)) hit = {};
  if (!free_cells(sequence, *index, hit)) return false;
  enter_slot(sequence, *index);
  fill_slot(sequence, hit);
  if (kv::StateStore* store = parts_.options.store) {
    const StateSize size = state_size(parts_.shape(), size_of(sequence.chain));
    store->expect(size.piece_bytes, size.pieces);
  }
  if (!sequence.was_placed()) {
    write_receipt(sequence, hit, had_tokens);
    parts_.tenants.charge(sequence.job.flow, std::max(1, sequence.usage.recomputed_tokens));
    sequence.times.first_placed = now;
  }
  sequence.resume.snapshot.reset();
  sequence.times.placed = now;
  log_debug("request {} session {} seq {}: placed with {} of {} tokens cached, {} to restore", sequence.job.id.value,
            log_name(sequence.job.session), *index, slot.tokens.size(), sequence.chain.size(),
            sequence.is_on<Restore>() ? sequence.restoring()->tokens_wanted : 0);
  if (!sequence.is_on<Restore>()) reuse_check_.begin(sequence, 0);
  return true;
}

void Placement::enter_slot(Sequence& sequence, std::size_t index) {
  parts_.slots.claim(index,
                     {.tenant = TenantId{sequence.job.flow.tenant},
                      .session = sequence.job.session,
                      .is_public = sequence.job.is_public,
                      .is_private = sequence.job.is_private || parts_.options.is_reproducible},
                     sequence.job.is_ephemeral, sequence.job.adapters);
  parts_.slots.set_sent(index, static_cast<std::size_t>(sequence.prompt_tokens));
  parts_.slots.set_agent(index, sequence.job.agent, parts_.clock.now());
  parts_.sequences.set_reordered();
  parts_.sequences.set_running(sequence, index);
  parts_.stats().queue_depth.add(-1);
  if (sequence.is_swapped_out()) {
    parts_.stats().swapped_sequences.add(-1);
    parts_.stats().swapped_bytes.add(-static_cast<std::int64_t>(sequence.resume.snapshot->bytes()));
  }
}

// Copies the hit's tokens into the slot, or begins to restore them.
void Placement::fill_slot(Sequence& sequence, const PrefixHit& hit) {
  switch (hit.kind) {
    case PrefixHit::Kind::none:
      return;
    case PrefixHit::Kind::slot: {
      const auto count = static_cast<std::size_t>(hit.tokens_count);
      if (hit.slot != sequence.slot) copy_slot(hit.slot, sequence.slot, count, sequence.job.session.empty());
      return;
    }
    case PrefixHit::Kind::snapshot:
      sequence.begin(Restore{.report = std::nullopt,
                             .stored = sequence.resume.snapshot,
                             .id = sequence.resume.id,
                             .tokens_wanted = hit.tokens_count,
                             .ms = sequence.resume.read_ms});
      return;
    case PrefixHit::Kind::store:
      (void)parts_.options.store->take(hit.stored.id);
      sequence.begin(
          Restore{.report = std::nullopt, .stored = hit.held, .id = hit.stored.id, .tokens_wanted = hit.tokens_count});
  }
}

// Copies the first `count` tokens of a slot into an empty one. A split context moves the whole sequence for that, for which
// streams wait, since computing the tokens again would take a hundred times as long. If that fails, the slot stays empty and
// the tokens are computed again.
void Placement::copy_slot(std::size_t from, std::size_t to, std::size_t count, bool is_one_shot) {
  const TimePoint now = parts_.clock.now();
  if (parts_.shape().is_unified) return parts_.slots.share(from, to, count, now);
  parts_.slots.touch(from, now);
  const auto from_sequence = static_cast<std::int32_t>(from);
  const std::vector<Token>& tokens = parts_.slots[from].tokens;
  const std::uint64_t bytes = state_reservation_bytes(parts_.context, from_sequence);
  auto reserved = is_one_shot ? parts_.states.pool().reserve(bytes) : parts_.states.reserve(bytes, kv::GiveWay::at_once);
  if (!reserved) {
    log_debug("lane {}: there is no memory to copy the {} tokens of slot {}, which are computed again", parts_.options.index,
              tokens.size(), from);
    return;
  }
  const auto copied = copy_sequence(parts_.context, from_sequence, static_cast<std::int32_t>(to), tokens, parts_.states.pool(),
                                    std::move(*reserved));
  if (!copied) {
    log_warning("lane {}: the {} tokens of slot {} could not be copied and are computed again: {}", parts_.options.index,
                tokens.size(), from, copied.error().message);
    return;
  }
  parts_.slots.append(to, tokens);
  (void)parts_.slots.cut(to, count);
}

void Placement::write_receipt(Sequence& sequence, const PrefixHit& hit, bool had_tokens) {
  Usage& usage = sequence.usage;
  const Slot& slot = parts_.slot_of(sequence);
  const bool is_here = hit.kind == PrefixHit::Kind::slot;
  const bool is_session = !sequence.job.session.empty();
  usage.prompt_tokens = sequence.prompt_tokens;
  const Restore* restore = sequence.restoring();
  usage.reused_tokens = restore != nullptr ? restore->tokens_wanted : size_of(slot.tokens);
  usage.recomputed_tokens = usage.prompt_tokens - usage.reused_tokens;
  if (usage.reused_tokens == 0) {
    usage.reuse_reason = sequence.resume.is_refused ? "refused"
                         : !is_session              ? "one_shot"
                         : had_tokens               ? "diverged"
                                                    : "not_cached";
    return;
  }
  usage.tier = is_here                                 ? Tier::hot
               : hit.kind == PrefixHit::Kind::snapshot ? sequence.resume.tier
               : hit.stored.was_read_ahead             ? Tier::shared
                                                       : Tier::warm;
  // The tokens in this slot may have been computed by another session.
  const bool is_own = is_here ? is_session && had_tokens && hit.slot == sequence.slot : hit.stored.is_own;
  const bool is_moved = is_here && slot.was_moved();
  // The session's slot has later tokens, too, which cannot be cut off.
  const bool is_checkpoint = !is_here && is_own && had_tokens && !parts_.shape().can_truncate;
  usage.reuse_reason = is_moved                              ? "shifted"
                       : is_checkpoint                       ? "checkpoint"
                       : is_own && sequence.job.is_rewritten ? "rewritten"
                       : is_own                              ? tier_name(usage.tier)
                                                             : "prefix";
  if (!is_here) return;  // Counted when the restore has ended.
  parts_.stats().reused_tokens_total.add(static_cast<std::uint64_t>(usage.reused_tokens));
  parts_.stats().hot_hits_total.add();
}

}  // namespace uma::engine
