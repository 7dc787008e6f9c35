// How a family of models is told of tools and writes their calls: what its template shows of it, and for all others a way of
// our own, which any instructed model can follow.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capability/jinja_value.h"
#include "capability/reply_parser.h"
#include "core/request.h"

namespace uma::capability {

// `none`: the template has no calls, or writes them in a way that no reader here knows.
[[nodiscard]] CallSyntax call_syntax_of(std::string_view chat_template);
// Sets the marks around thoughts, as the template knows them.
void set_think_marks(std::string_view chat_template, ReplyFormat& format);
// Texts that may be control tokens and mean something in such a reply.
[[nodiscard]] std::vector<std::string_view> marks_of(const ReplyFormat& format);

// A message as a template takes it.
struct WrittenMessage {
  std::string role;
  jinja::Text content;
};
// A conversation whose tools are described in its system message, whose calls are part of replies, and whose tools' results
// come from the user: for templates that know nothing of it. The reply is read as CallSyntax::tagged.
[[nodiscard]] std::vector<WrittenMessage> spell_out_tools(std::span<const ChatMessage> messages, std::string_view tools);

// How calls and empty contents are given to a template: families differ in what they take.
struct MessageStyle {
  bool is_empty_content_none = true;  // beside calls; else it is an empty text
  bool are_arguments_objects = true;  // else they are their JSON
};
// A dict of the message's role, content and other fields; its texts are input of `source`.
[[nodiscard]] jinja::Value message_value(const ChatMessage& message, jinja::Source source, MessageStyle style);

}  // namespace uma::capability
