// The notation of tools and tool calls in a model's family, derived from its template. For other templates there is a general
// notation that instructed models can follow.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chat/reply_parser.h"
#include "core/request.h"
#include "jinja/value.h"

namespace uma::chat {

// `none`: the template has no calls, or has a notation without a parser.
[[nodiscard]] CallSyntax call_syntax_of(std::string_view chat_template);
// Whether the template has marks around reasoning.
[[nodiscard]] bool has_reasoning_marks(std::string_view chat_template);
// Sets the marks around reasoning that appear in the template.
void set_reasoning_marks(std::string_view chat_template, ReplyFormat& format);
// Texts that may be control tokens with a meaning in such a reply.
[[nodiscard]] std::vector<std::string_view> marks_of(const ReplyFormat& format);

// A message in the form that templates take.
struct WrittenMessage {
  std::string role;
  jinja::Text content;
};
// For templates without tools: describes the tools in the system message, writes calls as part of replies, and writes results
// of tools as user messages. The reply is parsed as CallSyntax::tagged.
[[nodiscard]] std::vector<WrittenMessage> spell_out_tools(std::span<const ChatMessage> messages, std::string_view tools);

// The representation of calls and empty contents, which differs between families of templates.
struct MessageStyle {
  bool is_empty_content_none = true;  // Beside calls; false: an empty text.
  bool are_arguments_objects = true;  // False: their JSON.
};
// A dict with the message's role, content and other fields. The source of its texts is `source`.
[[nodiscard]] jinja::Value message_value(const ChatMessage& message, jinja::Source source, MessageStyle style);

}  // namespace uma::chat
