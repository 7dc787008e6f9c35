// Anthropic's message threads: conversations that the server holds, so that a request brings only the new messages. A thread is
// a session, and a message in it a response (ResponseRequest), whose `request` has the thread's tools besides what responses
// repeat. docs/protocol/anthropic.md.
#pragma once

#include <cstddef>
#include <expected>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/request.h"
#include "core/session_info.h"
#include "wire/json_body.h"
#include "wire/openai/response_ids.h"

namespace uma::wire {

inline constexpr std::string_view kThreadField = "thread";
inline constexpr std::string_view kPreviousMessageField = "thread.previous_message_id";
// The fields of errors where a request states other values than its thread has.
inline constexpr std::string_view kThreadSystemField = "thread.system";
inline constexpr std::string_view kThreadToolsField = "thread.tools";
// The value of the header anthropic-beta that a request with `thread` needs.
inline constexpr std::string_view kThreadsBeta = "message-threads-2026-08-12";

// `thread` of a request.
struct ThreadField {
  std::optional<ResponseId> previous{};  // The message to continue from; nullopt: a new thread begins.
};
// Nullopt: the body has no `thread`. An impossible id fails with E_SESSION_001.
[[nodiscard]] std::expected<std::optional<ThreadField>, RejectedBody> decode_thread(std::string_view body);

// The part of a thread that the server holds, up to one message.
struct HeldThread {
  ResponseId previous;  // That message.
  std::string system;   // The field `system` of its first request; empty: none.
  std::string tools;    // ChatOptions::tools of the thread, whatever tool_choice the message had.
  std::vector<std::string> tool_names;
  std::map<std::string, std::string, std::less<>> call_names;  // The tool of each call of that message, by the call's id.
};
// Nullopt: the response is not a message of a thread.
[[nodiscard]] std::optional<HeldThread> held_thread(const ResponseDetail& detail);

// The facts that are stored of a thread with each of its messages.
struct ThreadFacts {
  std::size_t system_bytes = 0;  // See ConversationReader::system_bytes().
  std::string tools;             // See HeldThread::tools.
};
// The options of the response that is a message of a thread. `id`: ResponseRequest::id; `continued`: null for a new thread.
[[nodiscard]] ResponseRequest thread_response(const GenerateRequest& generate, std::string id, const ThreadFacts& facts,
                                              const HeldThread* continued);

}  // namespace uma::wire
