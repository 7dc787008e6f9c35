#include "engine/lane/run/reuse_check.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/trace.h"
#include "llm/media/image_tokens.h"
#include "llm/sampling/logits.h"
#include "sched/plan_batch.h"

namespace uma::engine {
namespace {

constexpr TraceKind kVerifySpan{.name = "verify reuse", .numbers = {"rows"}};

std::string list_of(std::span<const Token> tokens) {
  constexpr std::size_t kTokensShownMax = 512;
  std::string text;
  for (const Token token : tokens.first(std::min(tokens.size(), kTokensShownMax))) text += std::format(" {}", token);
  return text + (tokens.size() > kTokensShownMax ? " …" : "");
}

}  // namespace

bool ReuseCheck::may_verify(const Sequence& sequence) const {
  const Slot& slot = parts_.slot_of(sequence);
  const llm::ContextShape& shape = parts_.shape();
  const std::size_t rows = slot.tokens.size() + 1;
  // A prefix with images is not verified, because its images would be encoded again.
  if (std::ranges::any_of(std::span(sequence.chain).first(rows), llm::is_image_token)) return false;
  // The added row stays in a cache that cannot be cut. It must not be the last row, whose logits are needed, and must not move
  // the prompt's grid of calls.
  if (!shape.can_truncate && (rows == sequence.chain.size() || parts_.options.is_reproducible)) return false;
  return !shape.is_unified || parts_.cells_reserved() + size_of(slot.tokens) + 2 <= shape.cells;
}

void ReuseCheck::begin(Sequence& sequence, kv::StateId state) {
  const Slot& slot = parts_.slot_of(sequence);
  if (slot.is_empty() || slot.was_moved() || !verifier_.takes_next() || !may_verify(sequence)) return;
  const std::int32_t reused = size_of(slot.tokens);
  const std::span<const Token> tokens = std::span<const Token>(sequence.chain).first(slot.tokens.size() + 1);
  const auto slot_number = static_cast<std::int32_t>(sequence.slot);
  const llm::BatchRow row{.token = tokens.back(), .position = reused, .sequence = slot_number, .wants_logits = true};
  const ContextCalls::PrefillPause pause(calls_);
  calls_.set_decode_threads();
  const auto status = calls_.run(false, sequence.job.adapters, {},
                                 [&](llm::CallMonitor*) { return parts_.context.decode(std::span(&row, 1), nullptr); });
  if (!status || *status != llm::DecodeStatus::done) return parts_.slots.resync(sequence.slot, sequence.chain);
  const std::span<const float> logits = parts_.context.logits(0);
  ReuseVerifier::Reuse reuse{
      .state = state, .tokens = {tokens.begin(), tokens.end()}, .logits = {logits.begin(), logits.end()}};
  if (parts_.shape().can_truncate) {
    UMA_CHECK(parts_.context.truncate(slot_number, reused));
  } else {
    parts_.slots.append(sequence.slot, tokens.last(1));
  }
  if (!llm::are_sound(reuse.logits)) {
    sequence.is_unsound = true;
    return calls_.set_unsound();
  }
  verifier_.begin(std::move(reuse));
  sequence.begin(Verifying());
}

Sequence& ReuseCheck::verified() const {
  const auto running = parts_.sequences.running();
  const auto found = std::ranges::find_if(running, [](const Sequence* sequence) { return sequence->is_on<Verifying>(); });
  UMA_CHECK(found != running.end());
  return **found;
}

bool ReuseCheck::run(double tick_ms) {
  if (!verifier_.current()) return false;
  Sequence& sequence = verified();
  const sched::StepModel& step_model = parts_.costs.step_model;
  const double ms = std::max(tick_ms - step_model.decode_ms(), 0.0) / 2;
  const std::int32_t rows_max = std::min(verifier_.rows_left(), parts_.shape().batch_rows_max);
  const std::int32_t rows =
      std::max(step_model.rows_within(ms, verifier_.rows_done(), rows_max), std::min(sched::kPrefillChunkMin, rows_max));
  const ContextCalls::PrefillPause pause(calls_);
  calls_.set_decode_threads();
  const bool has_cells = !parts_.shape().is_unified || parts_.cells_expected() + rows <= parts_.shape().cells;
  const auto distance = calls_.run(false, sequence.job.adapters, {}, [&](llm::CallMonitor*) {
    return has_cells ? verifier_.step(rows) : fail(ErrorCode::runtime_decode, "the context has no free cells for it");
  });
  if (!distance) {
    log_info("request {}: the verification of its reuse failed: {}", sequence.job.id.value, distance.error().message);
    end(sequence);
    return true;
  }
  record_span(kVerifySpan, calls_.last().began, calls_.last().ended, {rows});
  (void)calls_.charge(rows, static_cast<double>(verifier_.rows_done()) * sched::attention_tiles(rows));
  parts_.slots.set_spare_rows(static_cast<std::size_t>(verifier_.rows_done()));
  if (*distance) take_outcome(sequence, **distance);
  return true;
}

void ReuseCheck::take_outcome(Sequence& sequence, double distance) {
  // The new computation is not finite, which says nothing about the reused cells.
  if (!std::isfinite(distance)) return calls_.set_unsound();
  parts_.stats().reuses_verified_total.add();
  log_debug("request {}: {} reused tokens verified, their logits are {:.4f} apart", sequence.job.id.value,
            verifier_.current()->tokens.size() - 1, distance);
  if (distance > ReuseVerifier::kDistanceMax) {
    reject(sequence, distance);
  } else {
    end(sequence);
  }
}

void ReuseCheck::end(Sequence& sequence) {
  if (!sequence.is_on<Verifying>()) return;
  sequence.end<Verifying>();
  verifier_.end();
  parts_.slots.set_spare_rows(0);
  // The deadline is only for waiting in the queue.
  if (sequence.is_running()) sequence.enter_batch(parts_.clock.now(), parts_.stats());
}

bool ReuseCheck::abandon() {
  if (!verifier_.current()) return false;
  end(verified());
  return true;
}

bool ReuseCheck::is_being_verified(std::size_t index) const {
  return verifier_.current() && verified().slot == index;
}

// The reused cells do not match their tokens: a bug of this program, or a memory error. Drops the cells and their origin, and
// the sequence is computed from its tokens.
void ReuseCheck::reject(Sequence& sequence, double distance) {
  const ReuseVerifier::Reuse reuse = *verifier_.current();
  const std::span<const Token> reused = std::span(reuse.tokens).first(reuse.tokens.size() - 1);
  const Slot& slot = parts_.slot_of(sequence);
  parts_.stats().reuses_wrong_total.add();
  log_error(
      "request {} session {} seq {}: the {} reused cells ({}) do not match their tokens: the next logits are {:.2f} "
      "apart (limit {}). The cells are dropped and computed again. Tokens of the slot:{}; of the request:{}",
      sequence.job.id.value, log_name(sequence.job.session), sequence.slot, slot.tokens.size(),
      reuse.state != 0 ? std::format("stored state {}", reuse.state) : "a slot", distance, ReuseVerifier::kDistanceMax,
      list_of(slot.tokens), list_of(sequence.chain));
  if (reuse.state != 0) parts_.options.store->discard(reuse.state);
  forget_prefix(reused, parts_.prefix_query_of(sequence));
  parts_.slots.drop(sequence.slot);
  sequence.refuse_stored();
  end(sequence);
}

// Sequences without generated tokens are computed again, except those at an image, whose next call is already planned.
void ReuseCheck::forget_prefix(std::span<const Token> tokens, const kv::PrefixQuery& query) {
  constexpr int kStatesMax = 64;
  kv::StateStore* store = parts_.options.store;
  for (int i = 0; i < kStatesMax && store != nullptr; ++i) {
    const auto match = store->find(query, tokens);
    if (!match || static_cast<std::size_t>(match->tokens_count) < tokens.size()) break;
    store->discard(match->id);
  }
  const auto has_them = [&](const Slot& slot) { return kv::common_prefix(slot.tokens, tokens) == tokens.size(); };
  for (std::size_t i = 0; i < parts_.slots.size(); ++i) {
    if (!parts_.slots[i].is_running && has_them(parts_.slots[i])) parts_.slots.clear(i);
  }
  for (const SequencePtr& one : parts_.sequences) {
    if (!may_use(*one, tokens)) continue;
    one->recall();
    one->end<Restore>();
    one->held_logits.clear();
    parts_.slots.drop(one->slot);
    if (one->usage.reused_tokens > 0) one->count_recomputed();
  }
}

// Whether cells or a state of these tokens are in use by a sequence that can still be computed again.
bool ReuseCheck::may_use(const Sequence& sequence, std::span<const Token> tokens) const {
  if (!sequence.is_running() || sequence.is_on<Verifying>() || sequence.generated() > 0 || !sequence.job.images.empty())
    return false;
  std::int32_t reused = parts_.cached(sequence);
  const Restore* restore = sequence.restoring();
  if (sequence.is_on<Offloaded>() || (restore != nullptr && restore->report)) {
    reused = sequence.usage.reused_tokens;
  } else if (restore != nullptr) {
    reused = restore->tokens_wanted;
  }
  return reused >= static_cast<std::int32_t>(tokens.size()) && kv::common_prefix(sequence.chain, tokens) == tokens.size();
}

void ReuseCheck::check_invariants() const {
  const auto verified =
      std::ranges::count_if(parts_.sequences, [](const SequencePtr& sequence) { return sequence->is_on<Verifying>(); });
  UMA_CHECK(verified == (verifier_.current() ? 1 : 0));
  UMA_CHECK(!verifier_.current() || parts_.context.sequence_length(parts_.shape().spare) == verifier_.rows_done());
}

}  // namespace uma::engine
