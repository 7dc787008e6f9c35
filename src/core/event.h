// What a generation tells its client. Every accepted request gets any number of Token, Progress, ContextShift and
// ResponseBegun events and then exactly one of Eos and Failure. Failure only while no token was sent; after the first token an
// error arrives as Eos with reason `error`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "core/error.h"
#include "core/ids.h"
#include "core/usage.h"

namespace uma {

struct TokenEvent {
  std::string_view text;  // whole UTF-8 characters; empty while a character or a stop string is incomplete
  Token token = kNoToken;
};

enum class FinishReason : std::uint8_t { stop, length, cancelled, timeout, slow_consumer, error };

constexpr std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
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
  std::string text;  // text that was held back for a stop string that did not come; with stream: false the whole reply
  std::optional<Error> error;  // with reason error: what happened
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

using Event = std::variant<TokenEvent, EosEvent, FailureEvent, ProgressEvent, ContextShiftEvent, ResponseBegunEvent>;

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
