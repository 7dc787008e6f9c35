#include "engine/lane/restores.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/lane/state_transfer.h"

namespace uma::engine {

bool Restores::advance() {
  constexpr double kLoadMs = 5;
  // A streaming sequence may be computing new input; only one that waits for its next token is delayed.
  const bool someone_decodes = std::ranges::any_of(parts_.sequences, [&](const SequencePtr& sequence) {
    return sequence->is_running() && !sequence->is_blocked() && sequence->generated() > 0 &&
           size_of(sequence->chain) == parts_.cached(*sequence) + 1;
  });
  const TimePoint until = someone_decodes ? parts_.clock.now() + from_ms(kLoadMs) : kNever;
  bool did_work = false;
  for (const SequencePtr& sequence : parts_.sequences) {
    if (!sequence->restoring || !sequence->is_running() || (did_work && parts_.clock.now() >= until)) continue;
    if (!sequence->restoring->is_complete()) {
      const ContextCalls::PrefillPause pause(calls_);
      ends_.contain(*sequence, [&] { load(*sequence, until); });
      did_work = true;
      if (someone_decodes) continue;
    }
    if (sequence->restoring && sequence->restoring->is_complete()) {
      ends_.contain(*sequence, [&] { end(*sequence); });
      did_work = true;
    }
  }
  return did_work;
}

// Loads at least one piece.
void Restores::load(Sequence& sequence, TimePoint until) {
  Restore& restore = *sequence.restoring;
  const std::size_t index = sequence.slot;
  const auto slot = static_cast<std::int32_t>(index);
  const std::size_t wanted = restore.pieces_wanted();
  const TimePoint began = parts_.clock.now();
  do {
    const kv::SnapshotPiece& piece = restore.snapshot().pieces[restore.pieces_loaded];
    auto loaded = restore.report ? restore_piece(parts_.context, slot, restore.report->snapshot->pieces[restore.pieces_loaded])
                                 : restore_shared_piece(parts_.context, slot, sequence.job.adapters, *restore.stored,
                                                        restore.pieces_loaded, parts_.pool);
    if (!loaded) {
      parts_.slots.keep(index, 0);
      return refuse(sequence, loaded.error());
    }
    const auto begin = static_cast<std::size_t>(piece.begin);
    parts_.slots.append(index,
                        std::span(restore.snapshot().tokens).subspan(begin, static_cast<std::size_t>(piece.end) - begin));
    ++restore.pieces_loaded;
  } while (restore.pieces_loaded < wanted && parts_.clock.now() < until);
  const double ms = to_ms(parts_.clock.now() - began);
  restore.ms += ms;
  log_debug("request {}: restored {} of {} tokens in {:.2f} ms", sequence.job.id.value, parts_.cached(sequence),
            restore.tokens_wanted, ms);
  if (restore.report) parts_.stats.handover.record_ms(ms);
}

// The snapshot could not be loaded: the tokens are computed instead.
void Restores::refuse(Sequence& sequence, const Error& error) {
  log_warning("request {}: a state of {} tokens could not be loaded and is computed again: {}", sequence.job.id.value,
              sequence.restoring->tokens_wanted, error.message);
  if (sequence.restoring->report) {
    sequence.offload_disabled = true;
  } else {
    sequence.refuse_stored();
  }
  sequence.restoring.reset();
}

// The whole snapshot is in the slot. A whole prompt comes with the logits for its first token.
void Restores::end(Sequence& sequence) {
  Restore restore = std::move(*sequence.restoring);
  sequence.restoring.reset();
  (void)parts_.slots.cut(sequence.slot, static_cast<std::size_t>(restore.tokens_wanted));
  if (restore.report) {
    kv::recycle(std::move(*restore.report->snapshot), parts_.pool);
    if (restore.tokens_wanted == size_of(sequence.chain)) sampler_.sample_first(sequence, restore.report->logits);
    return;
  }
  if (!sequence.in_batch) sequence.usage.restore_ms = restore.ms;
  count_restored(sequence, restore);
  parts_.transfer.observe_load(restore.stored->bytes(), restore.ms - sequence.resume.read_ms);
  if (restore.id != 0) parts_.options.store->settle(restore.id, parts_.prefix_query_of(sequence));
  reuse_check_.begin(sequence, restore.id);
}

void Restores::count_restored(const Sequence& sequence, const Restore& restore) {
  LaneStats& stats = parts_.stats;
  if (!sequence.in_batch) stats.reused_tokens_total.add(static_cast<std::uint64_t>(restore.tokens_wanted));
  const bool was_cold = sequence.usage.tier == Tier::cold;
  (was_cold ? stats.cold_hits_total : stats.warm_hits_total).add();
  (was_cold ? stats.cold_restore : stats.warm_restore).record_ms(restore.ms);
}

}  // namespace uma::engine
