// What servers send while they generate, from both doors, brought to one value. Token events are recognised from a few bytes:
// the load generator shares its cores with the server it measures.
#pragma once

#include <expected>
#include <optional>
#include <string>
#include <string_view>

#include "measure.h"

namespace uma::bench {

struct UsageReport {
  int prompt_tokens = 0;
  int reused_tokens = 0;
  int completion_tokens = 0;
};

struct ServerEvent {
  bool is_token = false;
  bool is_end = false;       // nothing follows
  std::string text{};        // of a token, only with `with_text`
  std::string session_id{};  // of a new session
  std::optional<UsageReport> usage{};
};

// The body of one frame (docs/protocol/socket.md). Failure::server where it reports one, Failure::protocol where it makes no
// sense.
[[nodiscard]] std::expected<ServerEvent, Failure> parse_frame_event(std::string_view body, bool with_text);

// The data of one server-sent event of OpenAI's POST /v1/completions.
[[nodiscard]] std::expected<ServerEvent, Failure> parse_completion_event(std::string_view data, bool with_text);

// The message of an OpenAI error body, or the body itself.
[[nodiscard]] std::string error_message(std::string_view body);

// Cuts the bytes of a text/event-stream into the values of its `data:` lines; our servers send one per event.
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
