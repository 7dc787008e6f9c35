#include "engine/lane/prefill_offload.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/lane/state_transfer.h"

namespace uma::engine {
namespace {

bool is_beginning_of(const std::vector<Token>& tokens, const std::vector<Token>& chain) {
  return tokens.size() <= chain.size() && std::ranges::equal(tokens, std::span(chain).first(tokens.size()));
}

}  // namespace

void PrefillOffload::offload_long_prompts() {
  constexpr double kAloneMs = 1000;
  if (parts_.prefill == nullptr || parts_.options.policy.policy != sched::Policy::continuous) return;
  const double beside_ms = 2 * (planner_.tick_target_ms() - parts_.step_model.decode_ms());
  const double stay_ms = planner_.someone_decodes() ? std::max(beside_ms, 0.0) : kAloneMs;
  std::erase_if(planner_.views(), [&](const sched::SequenceView& view) {
    return is_long(view, stay_ms) && offload(parts_.sequences.at(view.index));
  });
}

// Whether the prompt takes longer than `stay_ms`; a shorter one is computed in the lane's own context.
bool PrefillOffload::is_long(const sched::SequenceView& view, double stay_ms) const {
  const Sequence& sequence = parts_.sequences.at(view.index);
  const std::int32_t pending = end_of_offload(sequence) - view.cached_tokens;
  if (view.decodes || pending < sched::kPrefillChunkMin || sequence.offload_disabled || !sequence.has_rows) return false;
  const double ms = parts_.step_model.prefill_ms(pending, view.cached_tokens);
  if (ms == 0) return pending > sched::kFastChunk;
  // The cached beginning moves to the prefill context and back, and the rest moves back.
  const std::size_t tokens = 2 * static_cast<std::size_t>(view.cached_tokens) + static_cast<std::size_t>(pending);
  return ms > stay_ms + 2 * parts_.transfer.load_ms(tokens * parts_.shape().kv_bytes_per_token);
}

// The end of the part of the chain that the prefill context can compute. It cuts no image.
std::int32_t PrefillOffload::end_of_offload(const Sequence& sequence) const {
  const std::int32_t end = std::min(size_of(sequence.chain), parts_.prefill->context().shape().sequence_cells_max);
  const image::ImageRun* cut =
      image::is_within_run(sequence.job.images, end) ? image::run_at(sequence.job.images, end) : nullptr;
  return cut == nullptr ? end : cut->begin;
}

bool PrefillOffload::offload(Sequence& sequence) {
  const Slot& slot = parts_.slot_of(sequence);
  if (slot.was_moved()) return false;
  PrefillJob job{.id = sequence.job.id,
                 .tokens = {sequence.chain.begin(), sequence.chain.begin() + end_of_offload(sequence)},
                 .images = sequence.job.images,
                 .adapters = sequence.job.adapters,
                 .snapshot = std::nullopt,
                 .is_background = sequence.job.is_background,
                 .received = sequence.job.received,
                 .placed = sequence.times.placed,
                 .due = planner_.prompt_due(sequence)};
  // The reservation is used for the state of the beginning, of the interrupted prompt and of the result, one after another.
  auto reserved = parts_.pool.reserve(prompt_reservation_bytes(parts_.prefill->context().shape(), size_of(job.tokens)));
  if (!reserved) {
    log_debug("request {}: there is no memory for the state of its prompt, so the lane computes it in its own context",
              sequence.job.id.value);
    sequence.offload_disabled = true;
    return false;
  }
  if (slot.is_empty()) {
    job.reservation = std::move(*reserved);
    post(sequence, std::move(job));
  } else {
    sequence.leaving.emplace(std::move(job), SequenceSave(parts_.context, slot.tokens, slot.adapters, std::move(*reserved)));
  }
  return true;
}

void PrefillOffload::post(Sequence& sequence, PrefillJob job) {
  sequence.is_offloaded = true;
  parts_.cores.prefill_job_sent();
  parts_.prefill->post(std::move(job));
}

bool PrefillOffload::advance() {
  constexpr double kSaveMs = 5;
  const bool someone_decodes = planner_.someone_decodes();
  const TimePoint until = someone_decodes ? parts_.clock.now() + from_ms(kSaveMs) : kNever;
  bool did_work = false;
  for (const SequencePtr& sequence : parts_.sequences) {
    if (!sequence->leaving || (did_work && parts_.clock.now() >= until)) continue;
    did_work = true;
    ends_.contain(*sequence, [&] { save(*sequence, until); });
  }
  return did_work;
}

// Saves at least one piece.
void PrefillOffload::save(Sequence& sequence, TimePoint until) {
  Leaving& leaving = *sequence.leaving;
  do {
    const auto slot = static_cast<std::int32_t>(sequence.slot);
    if (auto saved = leaving.save.save_piece(parts_.context, slot, parts_.pool); !saved) {
      log_warning("request {}: its state could not be saved ({}), so the lane computes the prompt in its own context",
                  sequence.job.id.value, saved.error().message);
      sequence.offload_disabled = true;
      sequence.leaving.reset();
      return;
    }
  } while (!leaving.save.is_complete() && parts_.clock.now() < until);
  if (!leaving.save.is_complete()) return;
  PrefillJob job = std::move(leaving.job);
  job.snapshot = leaving.save.take(parts_.pool);
  sequence.leaving.reset();
  post(sequence, std::move(job));
}

void PrefillOffload::accept(PrefillReport report) {
  if (report.is_final()) parts_.cores.handover_taken();
  Sequence* found = parts_.sequences.find(report.id);
  // A report may come from an earlier offload, if the chain has grown meanwhile.
  const bool is_stale = found != nullptr && report.snapshot && !is_beginning_of(report.snapshot->tokens, found->chain);
  if (found == nullptr || !found->is_offloaded || is_stale) {
    if (report.snapshot) kv::recycle(std::move(*report.snapshot), parts_.pool);  // The request was cancelled meanwhile.
    return;
  }
  Sequence& sequence = *found;
  if (report.began != TimePoint{}) sequence.enter_batch(report.began, parts_.stats);
  if (!report.is_final()) {
    if (sequence.job.wants_progress) runner_.report_progress(sequence, report.tokens_done);
    return;
  }
  sequence.is_offloaded = false;
  // The rest of a prompt that is longer than the prefill context is computed here.
  if (report.snapshot && report.snapshot->tokens.size() < sequence.chain.size()) sequence.offload_disabled = true;
  if (report.snapshot) return accept_prompt(sequence, std::move(report));
  log_warning("request {}: its prompt failed in the prefill lane ({}), so the lane computes it in its own context",
              sequence.job.id.value, report.error->message);
  sequence.offload_disabled = true;
}

// Frees cells for the state of a whole prompt and begins to load it, behind the pieces that the slot holds still. If other
// returning prompts have taken the cells, this sequence resumes later like a swapped-out one.
void PrefillOffload::accept_prompt(Sequence& sequence, PrefillReport report) {
  const std::int32_t tokens = size_of(report.snapshot->tokens);
  std::size_t kept = 0;
  for (const kv::SnapshotPiece& piece : report.snapshot->pieces) kept += piece.end <= parts_.cached(sequence) ? 1 : 0;
  const std::int32_t tokens_kept = kept == 0 ? 0 : report.snapshot->pieces[kept - 1].end;
  if (!parts_.slots.cut(sequence.slot, static_cast<std::size_t>(tokens_kept))) kept = 0;
  if (preemption_.free_cells_of_others(sequence, tokens - parts_.cached(sequence))) {
    sequence.restoring = Restore{
        .report = std::move(report), .stored = nullptr, .tokens_wanted = tokens, .pieces_kept = kept, .pieces_loaded = kept};
    return;
  }
  if (tokens == size_of(sequence.chain)) sampler_.sample_first(sequence, report.logits);
  sequence.resume.id = 0;
  if (sequence.is_running()) {
    preemption_.set_aside(sequence, kv::share_snapshot(std::move(*report.snapshot), parts_.pool));
  }
}

}  // namespace uma::engine
