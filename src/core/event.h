// Events of a generation. Every accepted request gets any number of Token, ReplyPart, Progress, ContextShift, ResponseBegun and
// PromptReady events and then exactly one Eos or Failure. Failure comes only before the first token; a later error is an Eos
// with reason `error`.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/error.h"
#include "core/ids.h"
#include "core/usage.h"
#include "core/work/tenant_budget.h"

namespace uma {

// The logarithm of a token's probability by the model's own logits, before any sampler setting.
struct TokenLogprob {
  Token token = kNoToken;
  double logprob = 0;   // At least kLogprobMin.
  std::string bytes{};  // The token's text, possibly a part of a character; empty for control tokens.
};
inline constexpr double kLogprobMin = -9999;

// The logprobs of one position: of the chosen token, and of the most likely tokens in order.
struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top{};
};

struct TokenEvent {
  // Content in whole UTF-8 characters. Empty while a character, a stop string or a mark is incomplete, and for tokens that are
  // not content.
  std::string_view text;
  Token token = kNoToken;
  // If requested: logprobs of the tokens that begin in `text`. These tokens may be older than this event's token.
  std::span<const TokenLogprobs> logprobs{};
};

// A piece of a reply that is not content. Precedes the TokenEvent of the token that completed it.
struct ReplyPart {
  enum class Kind : std::uint8_t { reasoning, tool_call };
  Kind kind = Kind::reasoning;
  std::string text{};     // The next piece of the reasoning, or of a tool call's arguments, which are a JSON object.
  std::int32_t call = 0;  // For a tool_call: its index in the reply, from 0.
  std::string id{};       // For a tool_call: set in its first piece only.
  std::string name{};     // For a tool_call: set in its first piece only.
  bool operator==(const ReplyPart&) const = default;
};

enum class FinishReason : std::uint8_t { stop, length, cancelled, timeout, slow_consumer, error, tool_calls };

constexpr std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::tool_calls:
      return "tool_calls";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::timeout:
      return "timeout";
    case FinishReason::slow_consumer:
      return "slow_consumer";
    case FinishReason::error:
      break;
  }
  return "error";
}

struct EosEvent {
  FinishReason reason = FinishReason::stop;
  Usage usage;
  std::string text;            // Content that was held back; with stream: false the whole content.
  std::optional<Error> error;  // The error, with reason `error`.
  // Parts that were held back; with stream: false the whole reasoning as one part, then each call as one part.
  std::vector<ReplyPart> parts{};
  // If requested: logprobs of the tokens of `text`.
  std::vector<TokenLogprobs> logprobs{};
  // If requested: logprobs of the prompt's tokens; the first one is predicted by nothing, and its logprob has no meaning. And
  // those of the token with which the model has ended the reply.
  std::vector<TokenLogprobs> prompt_logprobs{};
  std::optional<TokenLogprobs> end_logprobs{};
  std::string stop_string{};  // The stop string before which the text ends; empty: none.
  RequestShare share{};       // Memory of the logprobs and of their JSON, held as long as this event.
};

struct FailureEvent {
  Error error;
};

enum class ProgressStage : std::uint8_t { queued, loading, prefill };

struct ProgressEvent {
  ProgressStage stage = ProgressStage::queued;
  std::int64_t done = 0;
  std::int64_t total = 0;     // 0: unknown.
  std::int64_t position = 0;  // With queued: number of requests before this one.
  double eta_ms = 0;          // 0: unknown.
};

// The context was full. The generation continues without the oldest turns of its session, which are removed when it ends.
struct ContextShiftEvent {
  std::int32_t dropped_turns = 0;
  std::int32_t dropped_tokens = 0;
};

// The position of a response, sent before its first token. The session may be new and is not guaranteed to exist before the
// end.
struct ResponseBegunEvent {
  SessionId session;
  std::int32_t turn = 0;    // Counted from the session's beginning.
  std::int32_t number = 0;  // Index of the reply among the messages of the turn.
  std::string model{};      // The session's, for a request that names none; else empty.
};

// The prompt is tokenized, fits the context, and waits for its turn. The errors that can follow are those of its computation,
// and of images that cannot be encoded.
struct PromptReadyEvent {
  std::int32_t prompt_tokens = 0;
  std::vector<std::string> schema_left_out{};  // See Usage.
  CacheMiss cache_miss{};                      // Usage's miss, before it is known which KV is held.
};

using Event = std::variant<TokenEvent, ReplyPart, EosEvent, FailureEvent, ProgressEvent, ContextShiftEvent, ResponseBegunEvent,
                           PromptReadyEvent>;

[[nodiscard]] inline bool is_terminal(const Event& event) {
  return std::holds_alternative<EosEvent>(event) || std::holds_alternative<FailureEvent>(event);
}

// The receiver of a request's events. Shared by the connection and the lane that generates; the last one destroys it.
class EventSink {
 public:
  virtual ~EventSink() = default;
  // Called by engine threads, one at a time per request. Copies what it needs and never blocks. Returns false if the client
  // reads too slowly (limits.tx_bytes_max is reached) and the event was dropped; the producer then ends the request with
  // slow_consumer. Terminal events are always accepted.
  virtual bool deliver(const Event& event) = 0;
};

}  // namespace uma
