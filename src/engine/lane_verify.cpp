// Verification of what a lane's sequences reuse: when it begins, what it may take of a tick, and what follows
// (scheduler.verify).
#include <algorithm>
#include <format>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/lane.h"
#include "engine/lane_internal.h"
#include "llm/image_tokens.h"

namespace uma::engine {
namespace {

constexpr double kAloneMs = 100;  // that a part may take while nobody decodes

std::string list_of(std::span<const Token> tokens) {
  constexpr std::size_t kTokensTold = 512;
  std::string text;
  for (const Token token : tokens.first(std::min(tokens.size(), kTokensTold))) text += std::format(" {}", token);
  return text + (tokens.size() > kTokensTold ? " …" : "");
}

}  // namespace

// Where it is this one's turn: the logits of the first token after what was reused, as the reused cells have it. Until they
// have been compared the sequence waits.
void Lane::begin_verification(Sequence& sequence, kv::StateId state) {
  const Slot& slot = slots_[sequence.slot];
  const std::int32_t reused = size_of(slot.tokens);
  if (reused == 0 || slot.was_moved() || !verifier_.is_due()) return;
  const std::span<const Token> tokens = std::span<const Token>(sequence.chain).first(slot.tokens.size() + 1);
  // Images would have to be encoded again. What cannot be taken back must not be the last token, whose logits are needed.
  if (std::ranges::any_of(tokens, llm::is_image_token)) return;
  if (!shape().can_truncate && tokens.size() == sequence.chain.size()) return;
  const llm::BatchRow row{
      .token = tokens.back(), .position = reused, .sequence = static_cast<std::int32_t>(sequence.slot), .wants_logits = true};
  set_threads(cores_.decode_threads());
  const auto status = context_->decode(std::span(&row, 1), nullptr);
  stats_.batch_calls_total.add();
  if (!status || *status != llm::DecodeStatus::done) return resync_slot(sequence.slot);
  const std::span<const float> logits = context_->logits(0);
  ReuseVerifier::Reuse reuse{.request = sequence.task.id,
                             .state = state,
                             .tokens = {tokens.begin(), tokens.end()},
                             .logits = {logits.begin(), logits.end()}};
  if (shape().can_truncate) {
    UMA_CHECK(context_->truncate(static_cast<std::int32_t>(sequence.slot), reused));
  } else {
    add_cached(sequence.slot, tokens.last(1));
  }
  if (reuse.logits.empty()) return;
  verifier_.begin(std::move(reuse));
  sequence.is_verified = true;
}

// Computes a part of what is being verified, no more than streams can wait for. False: nothing is.
bool Lane::verify_some() {
  if (!verifier_.current()) return false;
  const auto found = std::ranges::find_if(sequences_, [](const SequencePtr& one) { return one->is_verified; });
  UMA_CHECK(found != sequences_.end());
  Sequence& sequence = **found;
  const bool someone_decodes = std::ranges::any_of(views_, &sched::SequenceView::decodes);
  const double ms = someone_decodes ? std::max(tick_target_ms() - step_model_.decode_ms(), 0.0) : kAloneMs;
  const std::int32_t rows_max = std::min(verifier_.rows_left(), shape().batch_rows_max);
  const std::int32_t rows =
      std::max(step_model_.rows_within(ms, verifier_.rows_done(), rows_max), std::min(sched::kPrefillChunkMin, rows_max));
  const bool has_room = !shape().is_unified || cells_used() + cells_arriving() + rows <= shape().cells;
  if (!has_room) {
    log_debug("request {}: the context has no room to verify what it reuses", sequence.task.id.value);
    end_verification(sequence);
    return true;
  }
  const Turn turn(*this, cores_.takes_turns());
  set_threads(cores_.decode_threads());
  const auto distance = verifier_.step(rows);
  stats_.batch_calls_total.add();
  if (!distance) {
    log_warning("request {}: what it reuses could not be verified: {}", sequence.task.id.value, distance.error().message);
    end_verification(sequence);
    return true;
  }
  cells_.add(slots_.size(), static_cast<std::size_t>(rows));
  if (!*distance) return true;
  stats_.reuses_verified_total.add();
  log_debug("request {}: {} reused tokens verified, their logits are {:.4f} apart", sequence.task.id.value,
            verifier_.current()->tokens.size() - 1, **distance);
  if (**distance > ReuseVerifier::kDistanceMax) {
    reject_reuse(sequence, **distance);
  } else {
    end_verification(sequence);
  }
  return true;
}

void Lane::end_verification(Sequence& sequence) {
  if (!sequence.is_verified) return;
  sequence.is_verified = false;
  verifier_.end();
  cells_.keep(slots_.size(), 0);
}

// The cells that the sequence reused are not those of their tokens: a fault of this program, or of memory. They go, and what
// they came from, and the sequence is computed from its tokens.
void Lane::reject_reuse(Sequence& sequence, double distance) {
  const ReuseVerifier::Reuse reuse = *verifier_.current();
  end_verification(sequence);
  stats_.reuses_wrong_total.add();
  log_error(
      "request {} session {} seq {}: the {} cells it reused ({}) are not those of their tokens: the next logits are {:.2f} "
      "apart "
      "(limit {}). They are thrown away and computed again. Tokens of the slot:{}; of the request:{}",
      sequence.task.id.value, sequence.task.session.empty() ? "-" : sequence.task.session.value, sequence.slot,
      slots_[sequence.slot].tokens.size(), reuse.state != 0 ? std::format("stored state {}", reuse.state) : "a slot", distance,
      ReuseVerifier::kDistanceMax, list_of(slots_[sequence.slot].tokens), list_of(sequence.chain));
  if (reuse.state != 0) options_.store->discard(reuse.state);
  // It may have been copied from one of these.
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].is_running && kv::common_prefix(slots_[i].tokens, reuse.tokens) + 1 >= reuse.tokens.size()) clear_slot(i);
  }
  drop_tokens(sequence.slot);
  note_refused(sequence);
}

}  // namespace uma::engine
