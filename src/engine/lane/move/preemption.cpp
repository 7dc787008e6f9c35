#include "engine/lane/move/preemption.h"

#include <algorithm>
#include <functional>
#include <ranges>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/lane/move/state_transfer.h"

namespace uma::engine {
namespace {

constexpr std::int64_t kCellsAtOnce = 128;  // So many at most are taken from a state that is not saved yet for a prompt.

}  // namespace

// The newest sequence on this detour; null: there is none.
template <class T>
Sequence* Preemption::newest_on() const {
  for (Sequence* sequence : parts_.sequences.running() | std::views::reverse) {
    if (sequence->is_on<T>()) return sequence;
  }
  return nullptr;
}

bool Preemption::free_cells(std::int64_t rows, std::int64_t decode_rows) {
  if (!parts_.shape().is_unified) return true;
  const auto missing = [&] { return parts_.cells_expected() + rows - parts_.shape().cells; };
  while (missing() > 0) {
    if (free_unused_cells(missing())) continue;
    Sequence* victim = choose_victim();
    if (victim == nullptr) victim = newest_on<Restore>();
    if (victim == nullptr) return true;  // A sequence alone fits, because its length is limited to the context's.
    swap_out(*victim);
    return false;
  }
  if (decode_rows > 0) eviction_.store_ahead(decode_rows);
  return true;
}

void Preemption::free_cells_for(Sequence& sequence) {
  if (free_unused_cells(kCellsAtOnce)) return;
  Sequence* victim = choose_victim();
  if (victim == nullptr) victim = newest_on<Restore>();
  if (victim != nullptr) {
    swap_out(*victim);
  } else {
    ends_.finish(
        sequence, FinishReason::error,
        Error{ErrorCode::runtime_decode, "the context has no free cells for this request, though no other request is in it"});
  }
}

// Beside streams the prompt waits with its state until admission has freed many cells piece by piece.
bool Preemption::free_cells_of_others(const Sequence& sequence, std::int32_t tokens) {
  const auto missing = [&] { return parts_.cells_expected() + tokens - parts_.shape().cells; };
  while (parts_.shape().is_unified && missing() > 0) {
    if (missing() > kCellsAtOnce && parts_.saves_by_pieces()) {
      if (drop_offloaded()) continue;
      return false;
    }
    if (free_unused_cells(missing())) continue;
    Sequence* victim = choose_victim();
    if (victim == nullptr || victim == &sequence || may_leave_slowly(*victim)) return false;
    swap_out(*victim);
  }
  return true;
}

// Frees cells that no planned call needs: those of an idle slot, those that an offloaded sequence has left in its slot, or
// those of a sequence that is being swapped out. Beside streams at least `wanted` of one slot, if it has so many. False: there
// are none.
bool Preemption::free_unused_cells(std::int64_t wanted) {
  return reuse_check_.abandon() || eviction_.free_cells(static_cast<std::size_t>(wanted)) || drop_offloaded() ||
         free_cells_of_leaving(static_cast<std::size_t>(wanted));
}

bool Preemption::drop_offloaded() {
  for (const Sequence* sequence : parts_.sequences.running()) {
    if (!sequence->is_on<Offloaded>() || parts_.slot_of(*sequence).is_empty()) continue;
    parts_.slots.drop(sequence->slot);
    return true;
  }
  return false;
}

// Takes cells at the end of a sequence that is being swapped out, whose tokens there are computed again when it resumes.
bool Preemption::free_cells_of_leaving(std::size_t wanted) {
  if (!parts_.shape().knows_pieces()) return false;
  Sequence* leaving = newest_on<SwapOut>();
  if (leaving == nullptr) return false;
  Sequence& sequence = *leaving;
  SequenceSave& save = sequence.swapping_out()->save;
  parts_.drop_unsaved(save, sequence.slot, wanted);
  if (parts_.slot_of(sequence).is_empty()) {
    sequence.recall();
    set_aside(sequence, nullptr);
  } else if (save.is_complete()) {
    end_swap_out(sequence);
  }
  return true;
}

// The newest of the least important running sequences. If only one runs, the newest one on its way to the prefill lane; null:
// there is none.
Sequence* Preemption::choose_victim() const {
  Sequence* victim = nullptr;
  std::size_t running = 0;
  for (Sequence* sequence : parts_.sequences.running()) {
    if (sequence->is_blocked() && !sequence->is_held()) continue;
    ++running;
    if (victim == nullptr || sequence->job.is_background >= victim->job.is_background) victim = sequence;
  }
  return running > 1 ? victim : newest_on<Leaving>();
}

bool Preemption::swap_out_background(RequestId important, TimePoint now) {
  if (newest_on<SwapOut>() != nullptr) return false;  // Its slot will be free.
  Sequence* victim = choose_background(now);
  if (victim == nullptr) return false;
  log_info("request {}: swapped out for request {}, which is more important", victim->job.id.value, important.value);
  return swap_out(*victim);
}

// The newest background sequence that may be swapped out. An offloaded sequence, which would begin again, is chosen only if
// there is no other.
Sequence* Preemption::choose_background(TimePoint now) const {
  Sequence* blocked = nullptr;
  for (Sequence* each : parts_.sequences.running() | std::views::reverse) {
    Sequence& sequence = *each;
    const bool may_go = sequence.job.is_background && now >= sequence.times.keeps_until;
    if (may_go && !sequence.is_blocked()) return &sequence;
    if (may_go && blocked == nullptr) blocked = &sequence;
  }
  return blocked;
}

bool Preemption::swap_out_for_cells(const Sequence& waiting, bool urgent, std::int64_t cells, std::size_t spared,
                                    TimePoint now) {
  std::vector<Sequence*> found;
  for (Sequence* sequence : parts_.sequences.running()) {
    if (sequence->slot != spared && gives_way_to(waiting, urgent, *sequence, now)) found.push_back(sequence);
  }
  if (found.empty()) return false;
  // A sequence that leaves already is the first, and an offloaded prompt, which would begin again, the last of its kind.
  std::ranges::sort(found, std::greater(), [](const Sequence* sequence) {
    return std::tuple(sequence->is_on<SwapOut>(), sequence->job.is_background, !sequence->is_blocked(), sequence->chain.size());
  });
  const std::int64_t used = parts_.cells_of_running();
  std::vector<const Sequence*> victims;
  std::size_t count = 0;
  while (count < found.size() && used - parts_.cells_of_running(victims) < cells) victims.push_back(found[count++]);
  if (used - parts_.cells_of_running(victims) < cells) return false;
  bool have_left = true;
  for (Sequence* victim : std::span(found).first(count)) {
    if (victim->is_on<SwapOut>()) {
      have_left = false;
      continue;
    }
    const bool must_go = victim->job.is_background && !waiting.job.is_background;
    const std::optional<bool> has_left = must_go ? swap_out(*victim) : swap_out_saved(*victim);
    if (!has_left) {  // It would be computed again at every turn.
      victim->times.keeps_until = now + from_ms(kTurnMs);
      return false;
    }
    have_left = have_left && *has_left;
    log_info("request {}: gives its cells to request {}", victim->job.id.value, waiting.job.id.value);
  }
  return have_left;
}

bool Preemption::must_wait_for_others(const Sequence& waiting, bool urgent, std::int64_t cells, TimePoint now) const {
  std::int64_t held = 0;
  for (const Sequence* sequence : parts_.sequences.running()) {
    const bool was_before = sequence->times.placed <= waiting.times.lacks_cells_since;
    if (was_before && !gives_way_to(waiting, urgent, *sequence, now)) held += size_of(sequence->chain);
  }
  return held >= cells;
}

// Whether a running sequence gives its cells to a waiting one now.
bool Preemption::gives_way_to(const Sequence& waiting, bool urgent, const Sequence& running, TimePoint now) const {
  const auto is_past = [now](TimePoint since) { return now >= since + from_ms(kTurnMs); };
  if (running.is_on<SwapOut>()) return true;
  if (now < running.times.keeps_until) return false;
  if (running.job.is_background && !waiting.job.is_background) return true;
  if (!running.job.is_background && !urgent) return false;
  const Slot& slot = parts_.slot_of(running);
  const bool generates = !running.is_blocked() && !running.is_unsound && running.generated() > 0 &&
                         parts_.cached(running) + 1 >= size_of(running.chain);
  return generates && !slot.was_moved() && is_past(waiting.times.lacks_cells_since) &&
         is_past(std::max(running.times.placed, running.times.first_token));
}

// Whether its state is saved in later ticks (StateMoves): piece by piece, or as a whole in a split context, one in a tick. A
// unified context that cannot be cut saves it at once, since others may need the cells, and no part of it can be dropped.
bool Preemption::may_leave_slowly(const Sequence& sequence) const {
  const llm::ContextShape& shape = parts_.shape();
  return (shape.can_truncate || !shape.is_unified) && parts_.sequences.someone_streams(&sequence);
}

// False: the sequence leaves the context when its state is saved.
bool Preemption::swap_out(Sequence& sequence) {
  if (!begin_swap_out(sequence)) return true;
  if (!may_leave_slowly(sequence)) {
    end_at_once(sequence);
    return true;
  }
  auto save = begin_save(sequence);
  sequence.recall();
  if (save) {
    sequence.begin(SwapOut{.save = std::move(*save)});
  } else {
    set_aside(sequence, nullptr);
  }
  return !save.has_value();
}

// For a sequence that generates, and stays if its state cannot be saved. Returns whether it has left the context, or leaves
// when its state is saved; nullopt: it stays.
std::optional<bool> Preemption::swap_out_saved(Sequence& sequence) {
  if (may_leave_slowly(sequence)) {
    auto save = begin_save(sequence);
    if (!save) return std::nullopt;
    sequence.begin(SwapOut{.save = std::move(*save), .may_stay = true});
    return false;
  }
  kv::SnapshotPtr kept = save(sequence);
  if (kept == nullptr) return std::nullopt;
  set_aside(sequence, std::move(kept));
  return true;
}

// Does what needs no saving. False: the sequence has left the context, or has ended.
bool Preemption::begin_swap_out(Sequence& sequence) {
  reuse_check_.end(sequence);
  if (sequence.is_unsound) {  // Its cells must not be reused.
    restart_unsound(sequence);
    return false;
  }
  if (sequence.is_held()) sampler_.sample_held(sequence);
  if (!sequence.is_running()) return false;
  if (Restore* restoring = sequence.restoring()) {
    Restore restore = std::move(*restoring);
    sequence.end<Restore>();
    if (restore.report) {
      set_aside_prompt(sequence, std::move(*restore.report));
    } else {
      set_aside(sequence, std::move(restore.stored), restore.id);
    }
    return false;
  }
  const Slot& slot = parts_.slot_of(sequence);
  if (!slot.is_empty() && !slot.was_moved()) return true;
  sequence.recall();
  set_aside(sequence, nullptr);
  return false;
}

// Saves the whole state now.
void Preemption::end_at_once(Sequence& sequence) {
  kv::SnapshotPtr kept = save(sequence);
  sequence.recall();
  set_aside(sequence, std::move(kept));
}

void Preemption::end_swap_out(Sequence& sequence) {
  kv::Snapshot snapshot = sequence.swapping_out()->save.take(parts_.states.pool());
  sequence.recall();
  set_aside(sequence, kv::share_snapshot(std::move(snapshot), parts_.states.pool()));
}

void Preemption::fail_swap_out(Sequence& sequence, const Error& error) {
  const bool may_stay = sequence.swapping_out()->may_stay;
  sequence.recall();
  report_not_saved(sequence, error);
  if (!may_stay) return set_aside(sequence, nullptr);
  sequence.times.keeps_until = parts_.clock.now() + from_ms(kTurnMs);
}

void Preemption::report_not_saved(const Sequence& sequence, const Error& error) const {
  log_warning("request {}: its state could not be saved: {}", sequence.job.id.value, error.message);
}

void Preemption::set_aside_prompt(Sequence& sequence, PrefillReport report) {
  // The logits are not kept.
  if (report.snapshot->tokens.size() == sequence.chain.size()) sampler_.sample_first(sequence, report.logits);
  if (sequence.is_held()) sampler_.sample_held(sequence);
  if (!sequence.is_running()) return kv::recycle(std::move(*report.snapshot), parts_.states.pool());
  set_aside(sequence, kv::share_snapshot(std::move(*report.snapshot), parts_.states.pool()));
}

// Goes on with what is saved already. Nullopt: there is no free memory for the state.
std::optional<SequenceSave> Preemption::begin_save(Sequence& sequence) {
  if (SwapOut* leaving = sequence.swapping_out()) return std::move(leaving->save);
  if (Leaving* leaving = sequence.leaving()) return std::move(leaving->save);
  eviction_.give_up_store();
  const std::uint64_t bytes = state_reservation_bytes(parts_.context, static_cast<std::int32_t>(sequence.slot));
  if (auto reserved = parts_.states.reserve(bytes, kv::GiveWay::at_once)) {
    return SequenceSave(parts_.context, parts_.slot_of(sequence).tokens, sequence.job.adapters, std::move(*reserved));
  }
  report_not_saved(sequence, {ErrorCode::limit_wait, "there is no free memory for it"});
  return std::nullopt;
}

// Null: there is no free memory for the state, or the context has failed.
kv::SnapshotPtr Preemption::save(Sequence& sequence) {
  auto begun = begin_save(sequence);
  if (!begun) return nullptr;
  const auto slot = static_cast<std::int32_t>(sequence.slot);
  auto snapshot = begun->finish(parts_.context, slot, parts_.states.pool());
  if (snapshot) return kv::share_snapshot(std::move(*snapshot), parts_.states.pool());
  report_not_saved(sequence, snapshot.error());
  return nullptr;
}

void Preemption::set_aside(Sequence& sequence, kv::SnapshotPtr snapshot, kv::StateId id) {
  sequence.resume.snapshot = std::move(snapshot);
  sequence.resume.id = id;
  if (sequence.is_swapped_out()) {
    parts_.stats().swapped_sequences.add(1);
    parts_.stats().swapped_bytes.add(static_cast<std::int64_t>(sequence.resume.snapshot->bytes()));
  }
  const TimePoint now = parts_.clock.now();
  parts_.slots.clear(sequence.slot);
  parts_.slots.release(sequence.slot, now);
  parts_.sequences.set_waiting(sequence);
  sequence.times.waits_since = now;
  parts_.sequences.set_reordered();
  parts_.stats().queue_depth.add(1);
  parts_.stats().preemptions_total.add();
  log_info("request {}: swapped out at {} tokens; it resumes when there are free cells", sequence.job.id.value,
           sequence.chain.size());
}

// States are saved as a whole here even if somebody streams, who could not go on meanwhile.
void Preemption::clear_context() {
  (void)reuse_check_.abandon();
  for (const SequencePtr& sequence : parts_.sequences) {
    if (!sequence->is_running()) continue;
    if (sequence->is_unsound) {
      restart_unsound(*sequence);
    } else if (sequence->is_on<Offloaded>()) {
      parts_.slots.drop(sequence->slot);
    } else if (begin_swap_out(*sequence)) {
      end_at_once(*sequence);
    }
  }
  for (std::size_t i = 0; i < parts_.slots.size(); ++i) {
    if (parts_.slots[i].is_running || parts_.slots[i].is_empty()) continue;
    eviction_.store(i);
    parts_.slots.clear(i);
  }
  parts_.context.clear();
}

// Computes an unsound sequence again from its tokens, or ends it if that was tried already. The prefix that it reused is not
// reused any more.
void Preemption::restart_unsound(Sequence& sequence) {
  sequence.is_unsound = false;
  sequence.held_logits.clear();
  sequence.drop_prompt_logprobs();
  parts_.stats().not_finite_total.add();
  log_error("request {} session {} seq {}: its logits are not finite; {}", sequence.job.id.value,
            log_name(sequence.job.session), sequence.slot,
            sequence.is_recomputing ? "they were computed again already, so the request ends"
                                    : "its cached tokens are dropped and computed again");
  parts_.slots.clear(sequence.slot);
  if (sequence.usage.reused_tokens > 0) {
    const std::vector<Token> tokens(sequence.chain.begin(), sequence.chain.begin() + sequence.usage.reused_tokens);
    reuse_check_.forget_prefix(tokens, parts_.prefix_query_of(sequence));
    sequence.count_recomputed();
  }
  if (sequence.is_recomputing) {
    return ends_.finish(
        sequence, FinishReason::error,
        Error{ErrorCode::runtime_decode, "the model's logits are not finite: no token can be sampled from them"});
  }
  sequence.is_recomputing = sequence.resume.is_refused = true;
  set_aside(sequence, nullptr);
}

}  // namespace uma::engine
