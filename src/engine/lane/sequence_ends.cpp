#include "engine/lane/sequence_ends.h"

#include <vector>

#include "base/check.h"
#include "base/trace.h"

namespace uma::engine {
namespace {

// The stages of a request, one after the other.
constexpr TraceKind kPrepareStage{.name = "prepare", .numbers = {"request", "prompt_tokens"}, .is_of_request = true};
constexpr TraceKind kQueueStage{.name = "queue", .numbers = {"request"}, .is_of_request = true};
constexpr TraceKind kPromptStage{.name = "prompt", .numbers = {"request", "reused_tokens"}, .is_of_request = true};
constexpr TraceKind kReplyStage{.name = "reply", .numbers = {"request", "tokens"}, .is_of_request = true};

void record_stages(const Sequence& sequence, TimePoint ended) {
  const auto id = static_cast<std::int64_t>(sequence.job.id.value);
  const SequenceTimes& times = sequence.times;
  record_span(kPrepareStage, sequence.job.received, times.arrived, {id, sequence.prompt_tokens});
  const bool has_tokens = sequence.generated() > 0;
  const TimePoint placed = sequence.was_placed() ? times.first_placed : ended;
  record_span(kQueueStage, times.arrived, placed, {id});
  if (!sequence.was_placed()) return;
  record_span(kPromptStage, placed, has_tokens ? times.first_token : ended, {id, sequence.usage.reused_tokens});
  if (has_tokens) record_span(kReplyStage, times.first_token, ended, {id, sequence.generated()});
}

// The typical time until the conversation's next request.
double pause_behind(const Event& terminal, const Agent& agent) {
  const auto* eos = std::get_if<EosEvent>(&terminal);
  if (eos == nullptr) return kv::kPersonPauseS;
  if (eos->reason == FinishReason::tool_calls) return kv::kToolPauseS;
  return eos->reason == FinishReason::stop && !agent.parent.empty() ? kv::kEndedPauseS : kv::kPersonPauseS;
}

}  // namespace

void SequenceEnds::finish(Sequence& sequence, FinishReason reason, std::optional<Error> error) {
  UMA_CHECK(!sequence.is_finished());
  sequence.recall();
  sequence.end<Restore>();
  reuse_check_.end(sequence);
  const bool has_slot = sequence.is_running();
  leave_context(sequence);
  parts_.sequences.set_finished(sequence);
  record_stages(sequence, parts_.clock.now());
  parts_.tenants.shares.leave(sequence.job.flow);
  parts_.sequences.set_reordered();
  if (error) parts_.stats().requests_failed_total.add();
  // Published before the result, because the session's next request looks for the lane that holds it.
  parts_.slots.publish();
  GenerationResult result = result_of(sequence, reason, std::move(error));
  if (has_slot) parts_.slots.set_pause(sequence.slot, pause_behind(result.terminal, sequence.job.agent));
  on_result_(std::move(result));
  sequence.has_result = true;
}

void SequenceEnds::leave_context(Sequence& sequence) {
  if (sequence.is_running()) {
    eviction_.leave(sequence);
    const double service_ms = to_ms(parts_.clock.now() - sequence.times.placed);
    service_ms_ = service_ms_ == 0 ? service_ms : service_ms_ + (service_ms - service_ms_) / 8;
    return;
  }
  parts_.stats().queue_depth.add(-1);
  if (sequence.is_swapped_out()) {
    parts_.stats().swapped_sequences.add(-1);
    parts_.stats().swapped_bytes.add(-static_cast<std::int64_t>(sequence.resume.snapshot->bytes()));
  }
}

GenerationResult SequenceEnds::result_of(Sequence& sequence, FinishReason reason, std::optional<Error> error) {
  chat::ReplyStream::End reply = sequence.reply.finish(reason != FinishReason::stop);
  if (reason == FinishReason::stop && reply.has_tool_calls) reason = FinishReason::tool_calls;
  const std::int32_t generated = sequence.generated();
  Usage& usage = sequence.usage;
  usage.completion_tokens = generated + (sequence.has_end_token ? 1 : 0);
  usage.reasoning_tokens = sequence.reply.reasoning_tokens();
  if (generated > 1) {
    const double ms = to_ms(sequence.times.last_token - sequence.times.first_token);
    if (ms > 0) usage.tokens_per_s = (generated - 1) * 1000.0 / ms;
  }
  GenerationResult result{
      .id = sequence.job.id,
      .generated = std::vector<Token>(sequence.chain.begin() + sequence.prompt_tokens, sequence.chain.end()),
      .dropped_turns = usage.dropped_turns,
      .reply = std::move(reply.content),
      .reply_extra = std::move(reply.message_extra),
      .has_calls = reply.has_tool_calls,
      .terminal = {}};
  if (error && generated == 0) {
    result.terminal = FailureEvent{std::move(*error)};
  } else {
    result.terminal = EosEvent{.reason = reason,
                               .usage = usage,
                               .text = std::move(reply.text),
                               .error = std::move(error),
                               .parts = std::move(reply.parts),
                               .logprobs = std::move(reply.logprobs),
                               .prompt_logprobs = std::move(sequence.prompt_logprobs),
                               .end_logprobs = std::move(sequence.end_logprobs),
                               .stop_string = std::move(reply.stop_string),
                               .share = std::move(sequence.logprobs_share)};
  }
  return result;
}

void SequenceEnds::fail_thrown(Sequence& sequence, const Error& error) {
  run_noting([&] {
    if (sequence.is_running()) parts_.slots.clear(sequence.slot);
    if (!sequence.is_finished()) finish(sequence, FinishReason::error, error);
  });
  if (std::exchange(sequence.has_result, true)) return;
  parts_.sequences.set_finished(sequence);
  report_failed(sequence.job.id, EosEvent{.reason = FinishReason::error, .usage = {}, .text = {}, .error = error});
}

void SequenceEnds::report_failed(RequestId id, Event terminal) {
  on_result_({.id = id, .generated = {}, .reply = {}, .reply_extra = {}, .terminal = std::move(terminal)});
}

}  // namespace uma::engine
