#include "engine/lane/move/preemption.h"

#include <algorithm>
#include <functional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/lane/move/state_transfer.h"

namespace uma::engine {

bool Preemption::free_cells(std::int64_t rows) {
  if (!parts_.shape().is_unified) return true;
  while (parts_.cells_expected() + rows > parts_.shape().cells) {
    if (free_unused_cells()) continue;
    Sequence* victim = choose_victim();
    if (victim == nullptr) victim = choose_restoring();
    if (victim == nullptr) return true;  // A sequence alone fits, because its length is limited to the context's.
    swap_out(*victim);
    return false;
  }
  return true;
}

void Preemption::free_cells_for(Sequence& sequence) {
  if (free_unused_cells()) return;
  Sequence* victim = choose_victim();
  if (victim == nullptr) victim = choose_restoring();
  if (victim != nullptr) {
    swap_out(*victim);
  } else {
    ends_.finish(
        sequence, FinishReason::error,
        Error{ErrorCode::runtime_decode, "the context has no free cells for this request, though no other request is in it"});
  }
}

bool Preemption::free_cells_of_others(const Sequence& sequence, std::int32_t tokens) {
  while (parts_.shape().is_unified && parts_.cells_expected() + tokens > parts_.shape().cells) {
    if (free_unused_cells()) continue;
    Sequence* victim = choose_victim();
    if (victim == nullptr || victim == &sequence) return false;
    swap_out(*victim);
  }
  return true;
}

// Frees cells that no planned call needs: those of an idle slot, or those that an offloaded sequence has left in its slot.
// False: there are none.
bool Preemption::free_unused_cells() {
  if (reuse_check_.abandon()) return true;
  if (eviction_.evict_idle(kv::GiveWay::at_once)) return true;
  for (const SequencePtr& sequence : parts_.sequences) {
    if (!sequence->is_on<Offloaded>() || parts_.slot_of(*sequence).is_empty()) continue;
    parts_.slots.drop(sequence->slot);
    return true;
  }
  return false;
}

// The newest of the least important running sequences. If only one runs, the newest one on its way to the prefill lane; null:
// there is none.
Sequence* Preemption::choose_victim() const {
  Sequence* victim = nullptr;
  std::size_t running = 0;
  for (const SequencePtr& sequence : parts_.sequences) {
    if (!sequence->is_running() || (sequence->is_blocked() && !sequence->is_held())) continue;
    ++running;
    if (victim == nullptr || sequence->job.is_background >= victim->job.is_background) victim = sequence.get();
  }
  if (running > 1) return victim;
  const auto leaving = std::find_if(parts_.sequences.rbegin(), parts_.sequences.rend(),
                                    [](const SequencePtr& sequence) { return sequence->is_on<Leaving>(); });
  return leaving == parts_.sequences.rend() ? nullptr : leaving->get();
}

// The newest sequence that is being restored; null: there is none.
Sequence* Preemption::choose_restoring() const {
  const auto found = std::find_if(parts_.sequences.rbegin(), parts_.sequences.rend(), [](const SequencePtr& sequence) {
    return sequence->is_running() && sequence->is_on<Restore>();
  });
  return found == parts_.sequences.rend() ? nullptr : found->get();
}

bool Preemption::swap_out_background(RequestId important, TimePoint now) {
  Sequence* victim = choose_background(now);
  if (victim == nullptr) return false;
  log_info("request {}: swapped out for request {}, which is more important", victim->job.id.value, important.value);
  swap_out(*victim);
  return true;
}

// The newest background sequence that may be swapped out. An offloaded sequence, which would begin again, is chosen only if
// there is no other.
Sequence* Preemption::choose_background(TimePoint now) const {
  Sequence* blocked = nullptr;
  for (auto each = parts_.sequences.rbegin(); each != parts_.sequences.rend(); ++each) {
    Sequence& sequence = **each;
    const bool may_go = sequence.is_running() && sequence.job.is_background && now >= sequence.times.keeps_until;
    if (may_go && !sequence.is_blocked()) return &sequence;
    if (may_go && blocked == nullptr) blocked = &sequence;
  }
  return blocked;
}

bool Preemption::swap_out_for_cells(const Sequence& waiting, bool urgent, std::int64_t cells, std::size_t spared,
                                    TimePoint now) {
  std::vector<Sequence*> found;
  for (const SequencePtr& sequence : parts_.sequences) {
    if (sequence->is_running() && sequence->slot != spared && gives_way_to(waiting, urgent, *sequence, now)) {
      found.push_back(sequence.get());
    }
  }
  if (found.empty()) return false;
  // An offloaded prompt, which would begin again, is the last of its kind.
  std::ranges::sort(found, std::greater(), [](const Sequence* sequence) {
    return std::tuple(sequence->job.is_background, !sequence->is_blocked(), sequence->chain.size());
  });
  const std::int64_t used = parts_.cells_of_running();
  std::vector<const Sequence*> victims;
  std::size_t count = 0;
  while (count < found.size() && used - parts_.cells_of_running(victims) < cells) victims.push_back(found[count++]);
  if (used - parts_.cells_of_running(victims) < cells) return false;
  for (Sequence* victim : std::span(found).first(count)) {
    if (victim->job.is_background && !waiting.job.is_background) {
      swap_out(*victim);
    } else {
      kv::SnapshotPtr kept = save(*victim);
      if (kept == nullptr) {  // It would be computed again at every turn.
        victim->times.keeps_until = now + from_ms(kTurnMs);
        return false;
      }
      victim->resume.id = 0;
      set_aside(*victim, std::move(kept));
    }
    log_info("request {}: gives its cells to request {}", victim->job.id.value, waiting.job.id.value);
  }
  return true;
}

bool Preemption::must_wait_for_others(const Sequence& waiting, bool urgent, std::int64_t cells, TimePoint now) const {
  std::int64_t held = 0;
  for (const SequencePtr& sequence : parts_.sequences) {
    const bool was_before = sequence->is_running() && sequence->times.placed <= waiting.times.lacks_cells_since;
    if (was_before && !gives_way_to(waiting, urgent, *sequence, now)) held += size_of(sequence->chain);
  }
  return held >= cells;
}

// Whether a running sequence gives its cells to a waiting one now.
bool Preemption::gives_way_to(const Sequence& waiting, bool urgent, const Sequence& running, TimePoint now) const {
  const auto is_past = [now](TimePoint since) { return now >= since + from_ms(kTurnMs); };
  if (now < running.times.keeps_until) return false;
  if (running.job.is_background && !waiting.job.is_background) return true;
  if (!running.job.is_background && !urgent) return false;
  const Slot& slot = parts_.slot_of(running);
  const bool generates = !running.is_blocked() && !running.is_unsound && running.generated() > 0 &&
                         parts_.cached(running) + 1 >= size_of(running.chain);
  return generates && !slot.was_moved() && is_past(waiting.times.lacks_cells_since) &&
         is_past(std::max(running.times.placed, running.times.first_token));
}

void Preemption::swap_out(Sequence& sequence) {
  reuse_check_.end(sequence);
  if (sequence.is_unsound) return restart_unsound(sequence);  // Its cells must not be reused.
  if (sequence.is_held()) sampler_.sample_held(sequence);
  if (!sequence.is_running()) return;
  kv::SnapshotPtr kept;
  sequence.resume.id = 0;
  if (Restore* restoring = sequence.restoring()) {
    Restore restore = std::move(*restoring);
    sequence.end<Restore>();
    if (restore.report) return set_aside_prompt(sequence, std::move(*restore.report));
    sequence.resume.id = restore.id;
    kept = std::move(restore.stored);
  } else if (const Slot& slot = parts_.slot_of(sequence); !slot.is_empty() && !slot.was_moved()) {
    kept = save(sequence);
  }
  sequence.recall();
  set_aside(sequence, std::move(kept));
}

void Preemption::set_aside_prompt(Sequence& sequence, PrefillReport report) {
  // The logits are not kept.
  if (report.snapshot->tokens.size() == sequence.chain.size()) sampler_.sample_first(sequence, report.logits);
  if (sequence.is_held()) sampler_.sample_held(sequence);
  if (!sequence.is_running()) return kv::recycle(std::move(*report.snapshot), parts_.states.pool());
  sequence.resume.id = 0;
  set_aside(sequence, kv::share_snapshot(std::move(*report.snapshot), parts_.states.pool()));
}

// Null: there is no free memory for the state, or the context has failed.
kv::SnapshotPtr Preemption::save(Sequence& sequence) {
  eviction_.give_up_store();
  const auto slot = static_cast<std::int32_t>(sequence.slot);
  const auto save_now = [&]() -> Expected<kv::Snapshot> {
    if (Leaving* leaving = sequence.leaving()) return leaving->save.finish(parts_.context, slot, parts_.states.pool());
    auto reserved = parts_.states.reserve(state_reservation_bytes(parts_.context, slot), kv::GiveWay::at_once);
    if (!reserved) return fail(ErrorCode::limit_wait, "there is no free memory for it");
    return save_sequence(parts_.context, slot, parts_.slot_of(sequence).tokens, sequence.job.adapters, parts_.states.pool(),
                         std::move(*reserved));
  };
  auto snapshot = save_now();
  if (snapshot) return kv::share_snapshot(std::move(*snapshot), parts_.states.pool());
  log_warning("request {}: its state could not be saved and will be computed again: {}", sequence.job.id.value,
              snapshot.error().message);
  return nullptr;
}

void Preemption::set_aside(Sequence& sequence, kv::SnapshotPtr snapshot) {
  sequence.resume.snapshot = std::move(snapshot);
  if (sequence.is_swapped_out()) {
    parts_.stats().swapped_sequences.add(1);
    parts_.stats().swapped_bytes.add(static_cast<std::int64_t>(sequence.resume.snapshot->bytes()));
  }
  const TimePoint now = parts_.clock.now();
  parts_.slots.clear(sequence.slot);
  parts_.slots.release(sequence.slot, now);
  sequence.state = Sequence::State::waiting;
  sequence.times.waits_since = now;
  parts_.sequences.set_reordered();
  parts_.stats().queue_depth.add(1);
  parts_.stats().preemptions_total.add();
  log_info("request {}: swapped out at {} tokens; it resumes when there are free cells", sequence.job.id.value,
           sequence.chain.size());
}

void Preemption::clear_context() {
  (void)reuse_check_.abandon();
  for (const SequencePtr& sequence : parts_.sequences) {
    if (!sequence->is_running()) continue;
    if (sequence->is_unsound) {
      restart_unsound(*sequence);
    } else if (sequence->is_on<Offloaded>()) {
      parts_.slots.drop(sequence->slot);
    } else {
      swap_out(*sequence);
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
