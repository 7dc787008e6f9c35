// Converts the events of both protocols to one type. Token events are recognised from a few bytes, because the load generator
// shares its cores with the measured server.
#pragma once

#include <expected>
#include <optional>
#include <string>
#include <string_view>

#include "uma-bench/measure.h"

namespace uma::bench {

struct UsageReport {
  int prompt_tokens = 0;
  int reused_tokens = 0;
  int completion_tokens = 0;
};

struct ServerEvent {
  bool is_token = false;
  bool is_end = false;       // The last event of the request.
  std::string text{};        // Text of a token; empty without `with_text`.
  std::string session_id{};  // Id of a new session.
  std::optional<UsageReport> usage{};
};

// Parses the body of one frame (docs/protocol/socket.md). An error event becomes Failure::server, an invalid event
// Failure::protocol.
[[nodiscard]] std::expected<ServerEvent, Failure> parse_frame_event(std::string_view body, bool with_text);

// Parses the data of one server-sent event of OpenAI's POST /v1/completions.
[[nodiscard]] std::expected<ServerEvent, Failure> parse_completion_event(std::string_view data, bool with_text);

// Parses the data of one server-sent event of OpenAI's POST /v1/chat/completions. An event with text, reasoning or a part of a
// tool call is a token event; `text` has the text alone.
[[nodiscard]] std::expected<ServerEvent, Failure> parse_chat_event(std::string_view data);

// The message of an OpenAI error body, or the body itself.
[[nodiscard]] std::string error_message(std::string_view body);

// Splits a text/event-stream into the values of its `data:` lines. umad sends one line per event.
class SseReader {
 public:
  void append(std::string_view bytes);
  // The next data value, valid until the next append().
  [[nodiscard]] std::optional<std::string_view> next();

 private:
  std::string buffer_;
  std::size_t consumed_ = 0;
};

}  // namespace uma::bench
