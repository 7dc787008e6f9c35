// Ids of responses, of messages in Anthropic's threads, and of conversations. An id contains the position of its object:
//
//   resp_ SESSION RESPONSE    msg_ SESSION RESPONSE    conv_ SESSION
//
// SESSION is a SessionId (32 hexadecimal digits), RESPONSE a ResponseRequest::id (16 digits). A text that differs from this
// format in any byte is no id. Ids of items: response_writer.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace uma::wire {

struct ResponseId {
  std::string session;
  std::string response;
  bool operator==(const ResponseId&) const = default;
};
[[nodiscard]] std::string response_id_text(const ResponseId& id);
[[nodiscard]] std::optional<ResponseId> parse_response_id(std::string_view text);
// The id of the message that is this response in a thread.
[[nodiscard]] std::string message_id_text(const ResponseId& id);
[[nodiscard]] std::optional<ResponseId> parse_message_id(std::string_view text);
[[nodiscard]] std::string conversation_id_text(std::string_view session);
[[nodiscard]] std::optional<std::string> parse_conversation_id(std::string_view text);  // Returns the session.

}  // namespace uma::wire
