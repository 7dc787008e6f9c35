#include "engine/lane/move/state_moves.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/trace.h"
#include "core/error.h"
#include "engine/lane/move/state_transfer.h"

namespace uma::engine {
namespace {

constexpr TraceKind kRestoreSpan{.name = "restore", .numbers = {"bytes", "request"}};

bool is_moved(const Sequence* sequence) {
  return sequence->is_on<Leaving>() || sequence->is_on<Restore>() || sequence->is_on<SwapOut>();
}

}  // namespace

bool StateMoves::is_wanted() const {
  return std::ranges::any_of(parts_.sequences.running(), is_moved);
}

bool StateMoves::advance() {
  constexpr double kBesideStreamsMs = 5;
  constexpr double kAloneMs = 50;
  const TimePoint now = parts_.clock.now();
  std::vector<std::pair<double, Sequence*>> moving;
  for (Sequence* sequence : parts_.sequences.running()) {
    if (!is_moved(sequence)) continue;
    if (sequence->is_on<SwapOut>()) {
      moving.emplace_back(std::numeric_limits<double>::lowest(), sequence);
      continue;
    }
    const Restore* restore = sequence->restoring();
    const std::int32_t ready = restore != nullptr ? restore->tokens_wanted : parts_.cached(*sequence);
    moving.emplace_back(planner_.prompt_rank(*sequence, size_of(sequence->chain) - ready, now), sequence);
  }
  if (moving.empty()) return false;
  std::ranges::stable_sort(moving, {}, &std::pair<double, Sequence*>::first);
  const ContextCalls::PrefillPause pause(calls_);
  const TimePoint until = parts_.clock.now() + from_ms(planner_.someone_decodes() ? kBesideStreamsMs : kAloneMs);
  for (const auto& [rank, sequence] : moving) {
    ends_.contain(*sequence, [&, moved = sequence] { move(*moved, until); });
    if (parts_.clock.now() >= until) break;
  }
  return true;
}

void StateMoves::move(Sequence& sequence, TimePoint until) {
  if (sequence.is_on<Leaving>()) return save(sequence, until);
  sequence.is_on<SwapOut>() ? save_swapped(sequence, until) : load(sequence, until);
}

// Saves at least one piece. After the last one the sequence leaves the context.
void StateMoves::save_swapped(Sequence& sequence, TimePoint until) {
  SequenceSave& save = sequence.swapping_out()->save;
  const auto saved = contain([&] { return parts_.save_pieces(save, sequence.slot, until); });
  if (!saved) return preemption_.fail_swap_out(sequence, saved.error());
  if (save.is_complete()) preemption_.end_swap_out(sequence);
}

// Saves at least one piece. After the last one the prompt is sent to the prefill lane.
void StateMoves::save(Sequence& sequence, TimePoint until) {
  Leaving& leaving = *sequence.leaving();
  // The deadline is only for waiting in the queue.
  sequence.enter_batch(parts_.clock.now(), parts_.stats());
  if (const auto saved = contain([&] { return parts_.save_pieces(leaving.save, sequence.slot, until); }); !saved) {
    log_warning("request {}: its state could not be saved ({}), so the lane computes the prompt in its own context",
                sequence.job.id.value, saved.error().message);
    sequence.offload_disabled = true;
    sequence.end<Leaving>();
    return;
  }
  if (!leaving.save.is_complete()) return;
  PrefillLane& prefill = leaving.prefill;
  PrefillJob job = std::move(leaving.job);
  job.snapshot = leaving.save.take(parts_.states.pool());
  sequence.end<Leaving>();
  sequence.send(prefill, std::move(job));
}

// Loads at least one piece.
void StateMoves::load(Sequence& sequence, TimePoint until) {
  Restore& restore = *sequence.restoring();
  const std::size_t index = sequence.slot;
  const auto slot = static_cast<std::int32_t>(index);
  const std::size_t wanted = restore.pieces_wanted();
  const TimePoint began = parts_.clock.now();
  std::size_t bytes = 0;
  do {
    const kv::SnapshotPiece& piece = restore.snapshot().pieces[restore.pieces_loaded];
    const auto loaded = contain([&] {
      return restore.report ? restore_piece(parts_.context, slot, restore.report->snapshot->pieces[restore.pieces_loaded])
                            : restore_shared_piece(parts_.context, slot, sequence.job.adapters, *restore.stored,
                                                   restore.pieces_loaded, parts_.states.pool());
    });
    if (!loaded) {
      parts_.slots.drop(index);
      return refuse(sequence, loaded.error());
    }
    const auto begin = static_cast<std::size_t>(piece.begin);
    parts_.slots.append(index,
                        std::span(restore.snapshot().tokens).subspan(begin, static_cast<std::size_t>(piece.end) - begin));
    bytes += piece.bytes.size();
    ++restore.pieces_loaded;
  } while (restore.pieces_loaded < wanted && parts_.clock.now() < until);
  const TimePoint ended = parts_.clock.now();
  record_span(kRestoreSpan, began, ended, {static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(sequence.job.id.value)});
  parts_.stats().restored_bytes_total.add(bytes);
  const double ms = to_ms(ended - began);
  restore.ms += ms;
  parts_.costs.transfer.observe_load(bytes, ms);
  log_debug("request {}: restored {} of {} tokens in {:.2f} ms", sequence.job.id.value, parts_.cached(sequence),
            restore.tokens_wanted, ms);
  if (restore.is_complete()) end_load(sequence);
}

// The snapshot could not be loaded: the tokens are computed instead.
void StateMoves::refuse(Sequence& sequence, const Error& error) {
  log_warning("request {}: a state of {} tokens could not be loaded and is computed again: {}", sequence.job.id.value,
              sequence.restoring()->tokens_wanted, error.message);
  if (sequence.restoring()->report) {
    sequence.offload_disabled = true;
  } else {
    sequence.refuse_stored();
  }
  sequence.end<Restore>();
}

// The whole snapshot is in the slot. A whole prompt comes with the logits for its first token.
void StateMoves::end_load(Sequence& sequence) {
  Restore restore = std::move(*sequence.restoring());
  sequence.end<Restore>();
  (void)parts_.slots.cut(sequence.slot, static_cast<std::size_t>(restore.tokens_wanted));
  if (restore.report) {
    parts_.stats().handover.record_ms(restore.ms);
    kv::recycle(std::move(*restore.report->snapshot), parts_.states.pool());
    if (restore.tokens_wanted == size_of(sequence.chain)) sampler_.sample_first(sequence, restore.report->logits);
    return;
  }
  if (!sequence.in_batch) sequence.usage.restore_ms = restore.ms;
  count_restored(sequence, restore);
  if (restore.id != 0) parts_.options.store->settle(restore.id, parts_.prefix_query_of(sequence));
  reuse_check_.begin(sequence, restore.id);
}

void StateMoves::count_restored(const Sequence& sequence, const Restore& restore) {
  LaneStats& stats = parts_.stats();
  if (!sequence.in_batch) stats.reused_tokens_total.add(static_cast<std::uint64_t>(restore.tokens_wanted));
  const Tier tier = sequence.usage.tier;
  (tier == Tier::cold ? stats.cold_hits_total : tier == Tier::shared ? stats.shared_hits_total : stats.warm_hits_total).add();
  (tier == Tier::cold     ? stats.cold_restore
   : tier == Tier::shared ? stats.shared_restore
                          : stats.warm_restore)
      .record_ms(restore.ms);
}

}  // namespace uma::engine
