// Conversations in the turns that a chat template insists on.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "chat/message_values.h"

namespace uma::chat {

// Joins and adds messages as the style wants. A MessageT has a role; join(last, next) appends the content of a message to an
// earlier one and returns false if they must stay apart.
template <class MessageT, class JoinT>
[[nodiscard]] std::vector<MessageT> in_turns(std::vector<MessageT> messages, const MessageStyle& style, JoinT&& join) {
  using BehindResults = MessageStyle::BehindResults;
  const auto empty_message = [](std::string_view role) {
    MessageT message{};
    message.role = role;
    return message;
  };
  std::vector<MessageT> turns;
  turns.reserve(messages.size() + 1);
  bool has_user = false;
  for (MessageT& message : messages) {
    const bool is_user = message.role == "user";
    if (!is_user && message.role != "system" && !has_user && style.begins_with_user) {
      turns.push_back(empty_message("user"));
      has_user = true;
    }
    has_user = has_user || is_user;
    const std::string_view last = turns.empty() ? std::string_view() : std::string_view(turns.back().role);
    const bool is_behind_result = is_user && last == "tool";
    const bool is_second = (is_user && last == "user" && !style.has_users_in_row) ||
                           (message.role == "assistant" && last == "assistant" && !style.has_replies_in_row);
    const bool joins = is_second || (is_behind_result && style.behind_results == BehindResults::joined);
    if (joins && join(turns.back(), message)) continue;
    if (is_behind_result && style.behind_results == BehindResults::reply) turns.push_back(empty_message("assistant"));
    turns.push_back(std::move(message));
  }
  if (!has_user && style.begins_with_user) turns.push_back(empty_message("user"));
  return turns;
}

}  // namespace uma::chat
