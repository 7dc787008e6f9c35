// Decodes requests of Anthropic's Messages API. Pure. docs/protocol/anthropic.md lists the fields.
#pragma once

#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "core/request.h"
#include "wire/anthropic/message_threads.h"
#include "wire/json_body.h"

namespace uma::wire {

struct MessagesCall {
  GenerateRequest generate;
  std::vector<std::string> warnings;  // A few sentences about what was left out of the request.
};

// The body of /v1/messages without `thread`, or of /v1/messages/count_tokens, which has the same fields.
[[nodiscard]] std::expected<MessagesCall, RejectedBody> decode_messages(std::string_view body);
// The body of /v1/messages with `thread`. `id` is ResponseRequest::id of the message. `continued` is what the message
// continues; null: it begins a thread. Other tools or another system prompt than its own fail as kThreadToolsField and
// kThreadSystemField.
[[nodiscard]] std::expected<MessagesCall, RejectedBody> decode_thread_message(std::string_view body, std::string id,
                                                                              const HeldThread* continued);

}  // namespace uma::wire
