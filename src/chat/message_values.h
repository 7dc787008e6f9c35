// The messages of a conversation as a chat template takes them. Templates disagree on where thoughts stand, on how calls and
// their results are written, and on system messages behind the first; MessageStyle says what the template of a model wants.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "chat/family.h"
#include "chat/reply/reply_parser.h"
#include "core/request.h"
#include "jinja/value.h"

namespace uma::chat {

struct MessageStyle {
  std::string_view thoughts_field = "reasoning_content";  // Static storage. Empty: thoughts are a part of the content.
  CallIds ids = CallIds::any;
  bool are_arguments_objects = true;   // False: their JSON.
  bool takes_broken_arguments = true;  // Arguments that are no JSON object are a text; false: an object with that text.
  // The template leaves calls out: they stand in the content, as this family writes them. Null: they are fields of the message.
  const Family* calls_in_content = nullptr;
  bool is_empty_content_none = false;       // Beside calls; false: an empty text.
  bool has_content_beside_thoughts = true;  // False: a message with thoughts and calls has no content.
  bool has_parallel_calls = true;           // False: a message has one call, and the call's result follows it.
  // False: system messages at the beginning are one, and a later one is a part of a user's message.
  bool has_system_messages = true;
  bool has_users_in_row = true;    // False: messages of the user in a row are one.
  bool has_replies_in_row = true;  // False: messages of the assistant in a row are one.
  bool begins_with_user = false;   // An empty message of the user stands where a conversation has none before its first reply.
  // A message of the user behind the result of a tool.
  enum class BehindResults : std::uint8_t {
    stays,   // The template takes it.
    reply,   // An empty message of the assistant stands between the two.
    joined,  // It is a part of the result.
  };
  BehindResults behind_results = BehindResults::stays;
  // The template writes blanks before a reply that are not in the prompt, so the model writes them.
  bool has_blanks_before_replies = false;
  bool operator==(const MessageStyle&) const = default;
};

// The messages as dicts. The source of a message's texts is its index. Results stand in the order of their calls, and have the
// name of the tool.
// `refused` is the format of the model's replies if the template has refused the messages; else null. What templates refuse is
// mended then: an empty reply is left out, a result without its call is a text of the user, and a reply has no marks of the
// family's messages in its texts.
[[nodiscard]] std::vector<jinja::Value> message_values(std::span<const ChatMessage> messages, const MessageStyle& style,
                                                       const ReplyFormat* refused = nullptr);

}  // namespace uma::chat
