// Decodes requests of Anthropic's Messages API. Pure. docs/protocol/anthropic.md lists the fields.
#pragma once

#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "core/request.h"
#include "wire/json_body.h"

namespace uma::wire {

// Asks the server to hold the conversation, which umad does for sessions and responses only. Refused, because a request that
// goes on in a thread has the last message alone.
inline constexpr std::string_view kThreadField = "thread";

struct MessagesCall {
  GenerateRequest generate;
  std::vector<std::string> warnings;  // What was left out of the request, as sentences; a few.
};

// The body of /v1/messages, or of /v1/messages/count_tokens, which has the same fields.
[[nodiscard]] std::expected<MessagesCall, RejectedBody> decode_messages(std::string_view body);

}  // namespace uma::wire
