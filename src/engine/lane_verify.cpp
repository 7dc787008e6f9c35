// Verification of what a lane's sequences reuse: when it begins, what it may take of a tick, and what follows
// (scheduler.verify).
#include <algorithm>
#include <cmath>
#include <format>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/lane.h"
#include "engine/lane_internal.h"
#include "llm/image_tokens.h"
#include "llm/logits.h"
#include "sched/bytes_moved.h"

namespace uma::engine {
namespace {

// The sequence that is being verified. REQUIRES: one is.
constexpr auto verified_of = [](const auto& sequences) -> auto& {
  const auto found = std::ranges::find_if(sequences, [](const auto& sequence) { return sequence->is_verified; });
  UMA_CHECK(found != sequences.end());
  return **found;
};

std::string list_of(std::span<const Token> tokens) {
  constexpr std::size_t kTokensTold = 512;
  std::string text;
  for (const Token token : tokens.first(std::min(tokens.size(), kTokensTold))) text += std::format(" {}", token);
  return text + (tokens.size() > kTokensTold ? " …" : "");
}

}  // namespace

// Takes the logits of the first token after what was reused, as the reused cells give them, if this reuse is one to verify.
// Until they have been compared the sequence waits.
void Lane::begin_verification(Sequence& sequence, kv::StateId state) {
  const Slot& slot = slots_[sequence.slot];
  const std::int32_t reused = size_of(slot.tokens);
  if (reused == 0 || slot.was_moved() || !verifier_.takes_next()) return;
  const std::span<const Token> tokens = std::span<const Token>(sequence.chain).first(slot.tokens.size() + 1);
  // Images would have to be encoded again.
  if (std::ranges::any_of(tokens, llm::is_image_token)) return;
  // A row that stays in the cache: not the last, whose logits are needed, and not where it would move the grid of the prompt.
  if (!shape().can_truncate && (tokens.size() == sequence.chain.size() || options_.is_reproducible)) return;
  if (shape().is_unified && cells_promised() + size_of(slot.tokens) + 2 > shape().cells) return;
  const llm::BatchRow row{
      .token = tokens.back(), .position = reused, .sequence = static_cast<std::int32_t>(sequence.slot), .wants_logits = true};
  const Turn turn(*this, cores_.takes_turns());
  set_threads(cores_.decode_threads());
  const auto status = context_->decode(std::span(&row, 1), nullptr);
  stats_.note_call_ended(clock_.now(), false);
  stats_.batch_calls_total.add();
  if (!status || *status != llm::DecodeStatus::done) return resync_slot(sequence.slot);
  const std::span<const float> logits = context_->logits(0);
  ReuseVerifier::Reuse reuse{.request = sequence.job.id,
                             .state = state,
                             .tokens = {tokens.begin(), tokens.end()},
                             .logits = {logits.begin(), logits.end()}};
  if (shape().can_truncate) {
    UMA_CHECK(context_->truncate(static_cast<std::int32_t>(sequence.slot), reused));
  } else {
    add_cached(sequence.slot, tokens.last(1));
  }
  if (!llm::are_sound(reuse.logits)) {
    has_unsound_ = true;
    return;
  }
  verifier_.begin(std::move(reuse));
  sequence.is_verified = true;
}

// Computes a part of what is being verified: as much as fits into half of the time that a tick leaves. Returns the time it
// took, in ms; 0: nothing is being verified.
double Lane::verify_some() {
  if (!verifier_.current()) return 0;
  Sequence& sequence = verified_of(sequences_);
  const double ms = std::max(tick_target_ms() - step_model_.decode_ms(), 0.0) / 2;
  const std::int32_t rows_max = std::min(verifier_.rows_left(), shape().batch_rows_max);
  const std::int32_t rows =
      std::max(step_model_.rows_within(ms, verifier_.rows_done(), rows_max), std::min(sched::kPrefillChunkMin, rows_max));
  const Turn turn(*this, cores_.takes_turns());
  set_threads(cores_.decode_threads());
  const TimePoint began = clock_.now();
  const bool has_room = !shape().is_unified || cells_used() + cells_arriving() + rows <= shape().cells;
  const auto distance = has_room ? verifier_.step(rows) : fail(ErrorCode::runtime_decode, "the context has no room for it");
  const double took_ms = std::max(to_ms(clock_.now() - began), 1e-3);
  if (!distance) {
    log_info("request {}: what it reuses is not verified: {}", sequence.job.id.value, distance.error().message);
    end_verification(sequence);
    return took_ms;
  }
  stats_.note_call_ended(clock_.now(), false);
  stats_.batch_calls_total.add();
  const double kv_tokens = static_cast<double>(verifier_.rows_done()) * sched::attention_tiles(rows);
  const double bytes = sched::bytes_of_call(options_.weights, rows, kv_tokens, shape().kv_bytes_per_token);
  bandwidth_.charge(bytes, to_ms(began.time_since_epoch()));
  cells_.add(slots_.size(), static_cast<std::size_t>(rows));
  if (!*distance) return took_ms;
  if (!std::isfinite(**distance)) {
    has_unsound_ = true;  // what was computed anew is not finite, which says nothing of what was reused
    return took_ms;
  }
  stats_.reuses_verified_total.add();
  log_debug("request {}: {} reused tokens verified, their logits are {:.4f} apart", sequence.job.id.value,
            verifier_.current()->tokens.size() - 1, **distance);
  if (**distance > ReuseVerifier::kDistanceMax) {
    reject_reuse(sequence, **distance);
  } else {
    end_verification(sequence);
  }
  return took_ms;
}

void Lane::end_verification(Sequence& sequence) {
  if (!sequence.is_verified) return;
  sequence.is_verified = false;
  verifier_.end();
  cells_.keep(slots_.size(), 0);
  // A deadline is for waiting in the queue.
  if (sequence.state == Sequence::State::running) note_in_batch(sequence, clock_.now());
}

// Cells are needed for what clients wait for. False: nothing is being verified.
bool Lane::give_up_verification() {
  if (!verifier_.current()) return false;
  end_verification(verified_of(sequences_));
  return true;
}

// What the slot has is being verified.
bool Lane::is_in_doubt(std::size_t index) const {
  return verifier_.current() && verified_of(sequences_).slot == index;
}

// The cells that the sequence reused are not those of their tokens: a fault of this program, or of memory. They go, and what
// they came from, and the sequence is computed from its tokens.
void Lane::reject_reuse(Sequence& sequence, double distance) {
  const ReuseVerifier::Reuse reuse = *verifier_.current();
  const std::span<const Token> reused = std::span(reuse.tokens).first(reuse.tokens.size() - 1);
  stats_.reuses_wrong_total.add();
  log_error(
      "request {} session {} seq {}: the {} cells it reused ({}) are not those of their tokens: the next logits are {:.2f} "
      "apart (limit {}). They are thrown away and computed again. Tokens of the slot:{}; of the request:{}",
      sequence.job.id.value, sequence.job.session.empty() ? "-" : sequence.job.session.value, sequence.slot,
      slots_[sequence.slot].tokens.size(), reuse.state != 0 ? std::format("stored state {}", reuse.state) : "a slot", distance,
      ReuseVerifier::kDistanceMax, list_of(slots_[sequence.slot].tokens), list_of(sequence.chain));
  if (reuse.state != 0) options_.store->discard(reuse.state);
  forget_beginning(reused, asker_of(sequence));
  drop_tokens(sequence.slot);
  note_refused(sequence);
  end_verification(sequence);
}

// Whatever has these tokens may be a copy of the same cells. Sequences that have said nothing yet are computed again, but for
// those at an image, whose next call is planned from where they are.
void Lane::forget_beginning(std::span<const Token> tokens, const kv::Asker& asker) {
  constexpr int kStatesMax = 64;
  for (int i = 0; i < kStatesMax && options_.store != nullptr; ++i) {
    const auto match = options_.store->find(asker, tokens);
    if (!match || static_cast<std::size_t>(match->tokens_count) < tokens.size()) break;
    options_.store->discard(match->id);
  }
  const auto has_them = [&](std::size_t index) { return kv::common_prefix(slots_[index].tokens, tokens) == tokens.size(); };
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].is_running && has_them(i)) clear_slot(i);
  }
  for (const SequencePtr& one : sequences_) {
    const bool is_silent = one->state == Sequence::State::running && !one->is_elsewhere() && one->generated() == 0;
    if (is_silent && one->job.images.empty() && has_them(one->slot)) drop_tokens(one->slot);
  }
}

}  // namespace uma::engine
