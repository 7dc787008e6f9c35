#include "engine/lane/move/prefill_offload.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/lane/move/state_transfer.h"

namespace uma::engine {
namespace {

bool is_beginning_of(const std::vector<Token>& tokens, const std::vector<Token>& chain) {
  return tokens.size() <= chain.size() && std::ranges::equal(tokens, std::span(chain).first(tokens.size()));
}

}  // namespace

void PrefillOffload::offload_long_prompts() {
  constexpr double kAloneMs = 1000;
  if (prefill_ == nullptr || parts_.options.policy.policy != sched::Policy::continuous) return;
  const double beside_ms = 2 * (planner_.tick_target_ms() - parts_.costs.step_model.decode_ms());
  const double stay_ms = planner_.someone_decodes() ? std::max(beside_ms, 0.0) : kAloneMs;
  std::erase_if(planner_.views(), [&](const sched::SequenceView& view) {
    return is_long(view, stay_ms) && offload(parts_.sequences.at(view.index));
  });
}

// Whether the prompt takes longer than `stay_ms`; a shorter one is computed in the lane's own context.
bool PrefillOffload::is_long(const sched::SequenceView& view, double stay_ms) const {
  const Sequence& sequence = parts_.sequences.at(view.index);
  const std::int32_t end = end_of_offload(sequence, prefill_->cells_max());
  const std::int32_t pending = end - view.cached_tokens;
  if (view.decodes || pending < sched::kPrefillChunkMin || sequence.offload_disabled || !sequence.has_rows) return false;
  const double ms = parts_.costs.step_model.prefill_ms(pending, view.cached_tokens);
  // Short prompts that come together share a call of the lane (docs/decisions/0067).
  const bool may_share = !view.is_background && !planner_.someone_decodes();
  if (pending <= sched::kFastChunk && (ms == 0 || may_share)) return false;
  if (ms == 0) return true;
  // A text may stay for two ticks. No tick can divide the call for an image, and on a busy machine it takes twice as long.
  if (planner_.someone_decodes() && longest_image_ms(sequence, view.cached_tokens, end) > stay_ms / 4) return true;
  // The cached beginning moves to the prefill context. The rest moves back, or the whole prompt if states have no pieces.
  const std::int32_t moved = pending + (parts_.shape().knows_pieces() ? 1 : 2) * view.cached_tokens;
  return ms > stay_ms + parts_.costs.transfer.move_ms(static_cast<std::size_t>(moved) * parts_.shape().kv_bytes_per_token);
}

// The longest call for an image among the tokens [cached, end), in ms.
double PrefillOffload::longest_image_ms(const Sequence& sequence, std::int32_t cached, std::int32_t end) const {
  double longest_ms = 0;
  for (const image::ImageRun& run : sequence.job.images) {
    if (!run.encoded || run.end() > end) continue;  // One without an encoding is cached.
    const std::int32_t rows_max = image::call_rows_max(*run.encoded, parts_.shape());
    for (std::int32_t at = std::max(run.begin, cached); at < run.end();) {
      const std::int32_t next = image::call_end(run, at, rows_max);
      longest_ms = std::max(longest_ms, parts_.costs.step_model.prefill_ms(next - at, at));
      at = next;
    }
  }
  return longest_ms;
}

// The end of the part of the chain that a prefill context of so many cells can compute. It cuts no image.
std::int32_t PrefillOffload::end_of_offload(const Sequence& sequence, std::int32_t cells) const {
  return image::before_run(sequence.job.images, std::min(size_of(sequence.chain), cells));
}

bool PrefillOffload::offload(Sequence& sequence) {
  const Slot& slot = parts_.slot_of(sequence);
  if (slot.was_moved()) return false;
  PrefillLane& prefill = *prefill_;
  std::int32_t end = end_of_offload(sequence, prefill.cells_max());
  ByteBudget::Share wider_context;
  if (const std::uint64_t bytes = prefill.wider_bytes(end); bytes > 0) {
    if (auto room = parts_.states.reserve(bytes, kv::GiveWay::by_disk)) {
      wider_context = std::move(*room);
    } else {
      end = end_of_offload(sequence, prefill.cells());
      if (end - size_of(slot.tokens) < sched::kPrefillChunkMin) return false;
    }
  }
  // It is used for the state of the beginning, of the interrupted prompt and of the result, one after another.
  auto reserved = parts_.states.reserve(prompt_reservation_bytes(prefill.shape_for(end), end), kv::GiveWay::by_disk);
  if (!reserved) {
    log_debug("request {}: there is no memory for the state of its prompt now, so the lane goes on in its own context",
              sequence.job.id.value);
    return false;
  }
  PrefillJob job{.id = sequence.job.id,
                 .tokens = {sequence.chain.begin(), sequence.chain.begin() + end},
                 .images = sequence.job.images,
                 .adapters = sequence.job.adapters,
                 .snapshot = std::nullopt,
                 .is_background = sequence.job.is_background,
                 .received = sequence.job.received,
                 .placed = sequence.times.placed,
                 .due = planner_.prompt_due(sequence)};
  job.wider_context = std::move(wider_context);
  if (slot.is_empty()) {
    job.reservation = std::move(*reserved);
    sequence.send(prefill, std::move(job));
  } else {
    sequence.begin(
        Leaving{prefill, std::move(job), SequenceSave(parts_.context, slot.tokens, slot.adapters, std::move(*reserved))});
  }
  return true;
}

void PrefillOffload::accept(PrefillReport report) {
  if (report.is_final()) cores_.handover_taken();
  Sequence* found = parts_.sequences.find(report.id);
  // A report may come from an earlier offload, after which the request was swapped out. It is still of use, unless the chain or
  // its slot has changed meanwhile.
  const bool is_awaited = found != nullptr && (found->is_on<Offloaded>() || found->is_on<Leaving>());
  const bool is_stale =
      is_awaited && report.snapshot &&
      (!is_beginning_of(report.snapshot->tokens, found->chain) || size_of(report.snapshot->tokens) <= parts_.cached(*found));
  if (!is_awaited || is_stale) {
    if (report.snapshot) kv::recycle(std::move(*report.snapshot), parts_.states.pool());
    return;
  }
  Sequence& sequence = *found;
  if (report.began != TimePoint{}) sequence.enter_batch(report.began, parts_.stats());
  if (!report.is_final()) {
    if (Offloaded* offloaded = sequence.offloaded()) offloaded->tokens = report.tokens_done;
    if (sequence.job.wants_progress) runner_.report_progress(sequence, report.tokens_done);
    return;
  }
  sequence.recall();  // From a later offload.
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
  if (!preemption_.free_cells_of_others(sequence, tokens - parts_.cached(sequence))) {
    return preemption_.set_aside_prompt(sequence, std::move(report));
  }
  sequence.begin(Restore{.report = std::move(report), .stored = nullptr, .tokens_wanted = tokens, .pieces_loaded = kept});
}

}  // namespace uma::engine
