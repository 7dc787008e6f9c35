// Tools and tool calls in a conversation's text. For templates without tools there is a general notation that instructed models
// can follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chat/reply/reply_parser.h"
#include "core/request.h"
#include "jinja/value.h"

namespace uma::chat {

// Texts that may be control tokens with a meaning in such a reply.
[[nodiscard]] std::vector<std::string_view> marks_of(const ReplyFormat& format);
// The names of tools and the types of their parameters, from ChatOptions::tools.
[[nodiscard]] Tools tools_of(std::string_view tools);
// Their memory.
[[nodiscard]] std::size_t bytes_of(const Tools& tools);

// A message in the form that templates take.
struct WrittenMessage {
  std::string role;
  jinja::Text content;
};
// A result of a tool as a text of the user.
[[nodiscard]] std::string spelled_result(std::string_view result);
// For templates without tools: describes the tools in the system message, writes calls as part of replies, and writes results
// of tools as user messages. The reply is parsed as one of general_family().
[[nodiscard]] std::vector<WrittenMessage> spell_out_tools(std::span<const ChatMessage> messages, std::string_view tools);

// The tools with the optional parts that a template may insist on: an empty description, parameters, properties, and an empty
// schema for one that is only true or false. As given if they are no list.
[[nodiscard]] std::string completed_tools(std::string_view tools);

// The JSON of the tools with four spaces for each level.
[[nodiscard]] jinja::Text indented_json(const jinja::Value& tools);

}  // namespace uma::chat
