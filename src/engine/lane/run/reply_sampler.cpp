#include "engine/lane/run/reply_sampler.h"

#include <algorithm>
#include <format>
#include <utility>

#include "chat/reply/logprob_queue.h"
#include "engine/lane/run/lost_error.h"
#include "llm/sampling/logits.h"
#include "llm/sampling/logprobs.h"
#include "llm/sampling/token_constraint.h"

namespace uma::engine {

bool ReplySampler::can_choose_ahead(const Sequence& sequence) const {
  return sequence.is_running() && sequence.has_begun_sampling && sequence.sampler.constraint() == nullptr &&
         !sequence.reply.wants_logprobs() && !sequence.reply.may_force_tokens();
}

void ReplySampler::choose_ahead(std::span<Sequence* const> sequences) {
  chosen_.clear();
  if (!team_.has_threads() || parts_.options.on_logits) return;
  chosen_.resize(sequences.size());
  std::size_t logits_count = 0;
  for (std::size_t row = 0; row < sequences.size(); ++row) {
    if (sequences[row] == nullptr || !can_choose_ahead(*sequences[row])) continue;
    const std::span<float> logits = parts_.context.logits(static_cast<std::int32_t>(row));
    if (logits.empty()) continue;
    logits_count += logits.size();
    chosen_[row].sequence = sequences[row];
    chosen_[row].logits = logits;
  }
  if (logits_count < parts_.options.sampling_logits_min) return chosen_.clear();
  team_.run(chosen_.size(), [this](std::size_t row) {
    Chosen& chosen = chosen_[row];
    if (chosen.sequence == nullptr) return;
    try {
      chosen.is_sound = llm::are_sound(chosen.logits);
      if (chosen.is_sound) chosen.token = chosen.sequence->sampler.sample(chosen.logits);
    } catch (...) {
      chosen.thrown = std::current_exception();
    }
  });
}

const ReplySampler::Chosen* ReplySampler::chosen(const Sequence& sequence, std::int32_t row) const {
  const auto index = static_cast<std::size_t>(row);
  return index < chosen_.size() && chosen_[index].sequence == &sequence ? &chosen_[index] : nullptr;
}

Error ReplySampler::no_logits() const {
  if (parts_.context.is_lost()) return lost_error(parts_.context.loss());
  return {ErrorCode::runtime_decode, "the library returned no logits for a token"};
}

void ReplySampler::sample_row(Sequence& sequence, std::int32_t row, TimePoint now, std::int32_t drawn) {
  const std::span<float> logits = parts_.context.logits(row);
  if (logits.empty()) return ends_.finish(sequence, FinishReason::error, no_logits());
  const Chosen* const ahead = chosen(sequence, row);
  if (ahead != nullptr ? !ahead->is_sound && !ahead->thrown : !llm::are_sound(logits)) {
    sequence.is_unsound = true;
    return calls_.set_unsound();
  }
  sequence.is_recomputing = false;
  parts_.stats().logits_rows_total.add();
  if (parts_.options.on_logits) parts_.options.on_logits(sequence.job.id, logits);
  ends_.contain(sequence, [&] {
    if (end_without_tokens(sequence)) return;
    if (ahead != nullptr && ahead->thrown) std::rethrow_exception(ahead->thrown);
    if (ahead != nullptr) return push_counted(sequence, ahead->token, now);
    if (!hold(sequence, logits)) choose_and_push(sequence, logits, drawn, now);
  });
}

void ReplySampler::sample_first(Sequence& sequence, std::span<float> logits) {
  parts_.stats().logits_rows_total.add();
  parts_.stats().logits_copied_total.add();
  if (parts_.options.on_logits) parts_.options.on_logits(sequence.job.id, logits);
  ends_.contain(sequence, [&] {
    if (end_without_tokens(sequence)) return;
    if (!hold(sequence, logits)) choose_and_push(sequence, logits, -1, parts_.clock.now());
  });
}

bool ReplySampler::begin_step() {
  grammar_work_ = 0;
  held_.clear();
  for (Sequence* sequence : parts_.sequences.running()) {
    if (sequence->is_held()) held_.push_back(sequence);
  }
  std::ranges::sort(held_, {}, &Sequence::held_since);
  for (Sequence* sequence : held_) {
    if (grammar_work_ < kGrammarWorkPerStep) sample_held(*sequence);
  }
  return !held_.empty();
}

void ReplySampler::sample_held(Sequence& sequence) {
  std::vector<float> logits = std::exchange(sequence.held_logits, {});
  ends_.contain(sequence, [&] { choose_and_push(sequence, logits, -1, parts_.clock.now()); });
}

bool ReplySampler::hold(Sequence& sequence, std::span<const float> logits) {
  if (!sequence.may_choose_slowly() || grammar_work_ < kGrammarWorkPerStep) return false;
  sequence.held_logits.assign(logits.begin(), logits.end());
  sequence.held_since = held_total_++;
  return true;
}

bool ReplySampler::end_without_tokens(Sequence& sequence) {
  if (sequence.job.tokens_max > 0) return false;
  ends_.finish(sequence, FinishReason::length);
  return true;
}

bool ReplySampler::add_prompt_logprobs(Sequence& sequence, std::int32_t begin, std::int32_t count) {
  ends_.contain(sequence, [&] {
    const auto first = parts_.slot_of(sequence).tokens.size() - static_cast<std::size_t>(count);
    for (std::int32_t i = 0; i < count && sequence.lacks_prompt_logprobs(); ++i) {
      const std::size_t predicted = first + static_cast<std::size_t>(i) + 1;
      if (predicted < sequence.prompt_logprobs.size()) continue;  // Computed again after a swap.
      const std::span<const float> logits = parts_.context.logits(begin + i);
      if (logits.empty()) return ends_.finish(sequence, FinishReason::error, no_logits());
      const std::int32_t top = sequence.reply.logprobs_top();
      sequence.prompt_logprobs.push_back(llm::logprobs_of(logits, sequence.chain[predicted], top, vocab_));
      sequence.prompt_logprobs_bytes += chat::logprobs_bytes(sequence.prompt_logprobs.back());
    }
    if (auto charged = charge_logprobs(sequence); !charged) {
      ends_.finish(sequence, FinishReason::error, std::move(charged.error()));
    }
  });
  return !sequence.is_finished();
}

Token ReplySampler::choose_token(Sequence& sequence, std::span<float> logits, std::int32_t drawn) {
  // Copied, because the sampler changes the logits.
  if (sequence.reply.wants_logprobs()) raw_logits_.assign(logits.begin(), logits.end());
  llm::TokenConstraint* const constraint = sequence.sampler.constraint();
  const auto forced = sequence.reply.forced_token();
  if (forced && (constraint == nullptr || constraint->allows(*forced))) return *forced;
  if (drawn < 0) return sequence.sampler.sample(logits);
  const auto row = static_cast<std::size_t>(drawn);
  return sequence.sampler.verify(logits, sequence.draft.tokens[row], sequence.draft.distributions[row]);
}

void ReplySampler::choose_and_push(Sequence& sequence, std::span<float> logits, std::int32_t drawn, TimePoint now) {
  const std::uint64_t before = sequence.sampler.grammar_work();
  const std::uint64_t counting = sequence.begin_sampling(vocab_);
  const Token token = choose_token(sequence, logits, drawn);
  grammar_work_ += counting;
  count_grammar(sequence, before);
  push_counted(sequence, token, now);
}

void ReplySampler::push_counted(Sequence& sequence, Token token, TimePoint now) {
  const std::uint64_t before = sequence.sampler.grammar_work();
  push_token(sequence, token, now);
  count_grammar(sequence, before);
}

void ReplySampler::count_grammar(Sequence& sequence, std::uint64_t before) {
  const std::uint64_t work = sequence.sampler.grammar_work() - before;
  grammar_work_ += work;
  const double ms = static_cast<double>(work) / llm::TokenConstraint::kWorkPerMs;
  const auto tokens = static_cast<std::int64_t>(ms * parts_.costs.step_model.prefill_tokens_per_ms());
  if (tokens > 0 && !sequence.is_finished()) parts_.tenants.charge(sequence.job.flow, tokens);  // Else its flow may have left.
}

void ReplySampler::push_token(Sequence& sequence, Token token, TimePoint now) {
  if (token == kNoToken) {
    if (sequence.sampler.constraint()->can_end()) return ends_.finish(sequence, FinishReason::stop);
    return ends_.finish(
        sequence, FinishReason::error,
        Error{ErrorCode::runtime_decode, "no token of the model can continue the reply according to its grammar"});
  }
  if (vocab_.is_end_of_generation(token) || sequence.reply.is_end(token)) {
    const auto closing = sequence.reply.instead_of_end();
    if (!closing) return end_by_token(sequence, token);
    token = *closing;
  }
  sequence.chain.push_back(token);
  sequence.sampler.accept(token);
  parts_.stats().tokens_total.add();
  parts_.tenants.charge(sequence.job.flow, 1);
  record_latency(sequence, now);

  using Next = chat::ReplyStream::Next;
  const Next next = sequence.reply.push(token, raw_logits_, sequence.sampler, *sequence.job.sink);
  const bool is_full = shifter_.is_full(sequence) && !shifter_.droppable_turns(sequence);
  if (auto charged = charge_logprobs(sequence); !charged) {
    ends_.finish(sequence, FinishReason::error, std::move(charged.error()));
  } else if (next == Next::slow_client) {
    ends_.finish(sequence, FinishReason::slow_consumer);
  } else if (next == Next::stop || sequence.sampler.is_complete()) {
    ends_.finish(sequence, FinishReason::stop);
  } else if (sequence.generated() >= sequence.job.tokens_max || is_full) {
    ends_.finish(sequence, FinishReason::length);
  }
}

void ReplySampler::end_by_token(Sequence& sequence, Token token) {
  sequence.has_end_token = true;
  if (sequence.job.wants_prompt_logprobs) {
    sequence.end_logprobs = llm::logprobs_of(raw_logits_, token, sequence.reply.logprobs_top(), vocab_);
  }
  ends_.finish(sequence, FinishReason::stop);
}

Expected<Unit> ReplySampler::charge_logprobs(Sequence& sequence) {
  if (!sequence.reply.wants_logprobs() || !sequence.job.share) return Unit{};
  if (!sequence.logprobs_share) sequence.logprobs_share = sequence.job.share->open_another();
  auto charged = sequence.logprobs_share->resize(sequence.prompt_logprobs_bytes + sequence.reply.logprobs_bytes());
  if (charged) return charged;
  return fail(
      charged.error().code,
      std::format("the log probabilities need too much memory after {} tokens: {}",
                  sequence.prompt_logprobs.size() + static_cast<std::size_t>(sequence.generated()), charged.error().message));
}

void ReplySampler::record_latency(Sequence& sequence, TimePoint now) {
  if (sequence.generated() == 1) {
    sequence.times.first_token = now;
    sequence.usage.ttft_ms = to_ms(now - sequence.job.received);
    parts_.stats().ttft.record_ms(sequence.usage.ttft_ms);
    if (const TimePoint due = targets_.first_token_due(sequence); due != kNever) count_slo(now <= due);
  } else {
    const double gap_ms = to_ms(now - sequence.times.last_token);
    parts_.stats().inter_token.record_ms(gap_ms);
    sequence.times.gap_ms = sequence.times.gap_ms == 0 ? gap_ms : sequence.times.gap_ms + (gap_ms - sequence.times.gap_ms) / 8;
    count_slo(gap_ms <= targets_.tbt_ms(sequence));
  }
  sequence.times.last_token = now;
}

void ReplySampler::count_slo(bool is_met) {
  (is_met ? parts_.stats().slo_met_total : parts_.stats().slo_missed_total).add();
}

}  // namespace uma::engine
