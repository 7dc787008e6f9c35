// What a generation tells its client. Every accepted request gets any number of Token, ReplyPart, Progress, ContextShift and
// ResponseBegun events and then exactly one of Eos and Failure. Failure only while no token was sent; after the first token an
// error arrives as Eos with reason `error`.
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

namespace uma {

// How likely a token was to come: the logarithm of its chance by the model's own logits, before any setting of the sampler.
struct TokenLogprob {
  Token token = kNoToken;
  double logprob = 0;   // at least kLogprobMin
  std::string bytes{};  // its text, possibly part of a character; empty for control tokens
};
inline constexpr double kLogprobMin = -9999;

// Those of one place of the content: of the token that came, and of the likeliest ones in their order.
struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top{};
};

struct TokenEvent {
  // Content, in whole UTF-8 characters; empty while a character, a stop string or a mark is incomplete, and for what is no
  // content.
  std::string_view text;
  Token token = kNoToken;
  // Where the request asks for them: of the tokens that begin in `text`, which may have come before this one.
  std::span<const TokenLogprobs> logprobs{};
};

// A piece of a reply that is not its content. Comes before the TokenEvent of the token that made it certain.
struct ReplyPart {
  enum class Kind : std::uint8_t { reasoning, tool_call };
  Kind kind = Kind::reasoning;
  std::string text{};     // reasoning: the next piece of it; tool_call: of its arguments, which are a JSON object
  std::int32_t call = 0;  // tool_call: which one of the reply, from 0
  std::string id{};       // tool_call: with its first piece; empty with the others
  std::string name{};     // likewise
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
  std::string text;            // content that was held back for what did not come; with stream: false the whole content
  std::optional<Error> error;  // with reason error: what happened
  // Likewise of the rest. With stream: false: all it thought as one part, then each call as one.
  std::vector<ReplyPart> parts{};
  // Likewise of the tokens of `text`, where the request asks for them.
  std::vector<TokenLogprobs> logprobs{};
};

struct FailureEvent {
  Error error;
};

enum class ProgressStage : std::uint8_t { queued, loading, prefill };

struct ProgressEvent {
  ProgressStage stage = ProgressStage::queued;
  std::int64_t done = 0;
  std::int64_t total = 0;     // 0: unknown
  std::int64_t position = 0;  // queued: requests in front of this one
  double eta_ms = 0;          // 0: unknown
};

// The context was full: the generation goes on without the oldest turns of its session, which are gone with the end of this
// one.
struct ContextShiftEvent {
  std::int32_t dropped_turns = 0;
  std::int32_t dropped_tokens = 0;
};

// A response has a place: before its first token it is told which. The session may be a new one, and is nothing to rely on
// before the end.
struct ResponseBegunEvent {
  SessionId session;
  std::int32_t turn = 0;    // since the session's beginning
  std::int32_t number = 0;  // of its reply among the messages of the turn
};

using Event = std::variant<TokenEvent, ReplyPart, EosEvent, FailureEvent, ProgressEvent, ContextShiftEvent, ResponseBegunEvent>;

[[nodiscard]] inline bool is_terminal(const Event& event) {
  return std::holds_alternative<EosEvent>(event) || std::holds_alternative<FailureEvent>(event);
}

// Where the events of one request go. Shared: the door and the lane that generates end its life together, whichever is last.
class EventSink {
 public:
  virtual ~EventSink() = default;
  // Called by engine threads, one at a time for one request; copies what it needs and never blocks. False: the client reads
  // too slowly (limits.tx_bytes_max is reached) and the event was dropped, so the producer ends the request with slow_consumer.
  // Terminal events are always taken.
  virtual bool deliver(const Event& event) = 0;
};

}  // namespace uma
