// The common part of the handlers of stored replies: /v1/responses, over HTTP and WebSocket, and Anthropic's threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/error.h"
#include "core/session_info.h"
#include "server/awaitable.h"
#include "wire/openai/response_ids.h"

namespace uma::server {

class HttpConnection;

// Time to live of a session that was made for replies, after its last use: that of OpenAI's responses.
inline constexpr std::int64_t kReplySessionTtlSeconds = 30 * 86'400;

// The stored response, or nullopt if the connection was closed meanwhile.
Awaitable<std::optional<Expected<ResponseDetail>>> ask_for_response(HttpConnection& connection, wire::ResponseId id);
// In a session a name that no model has means the model of the session: `asked` becomes empty.
void keep_model_of_session(HttpConnection& connection, std::string& asked);

}  // namespace uma::server
