#include "wire/openai/response_ids.h"

#include <algorithm>
#include <cstddef>
#include <format>

namespace uma::wire {
namespace {

constexpr std::string_view kResponsePrefix = "resp_";
constexpr std::string_view kMessagePrefix = "msg_";
constexpr std::string_view kConversationPrefix = "conv_";
constexpr std::size_t kSessionDigits = 32;
constexpr std::size_t kResponseDigits = 16;

bool is_hex(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::optional<ResponseId> parse_id(std::string_view prefix, std::string_view text) {
  if (!text.starts_with(prefix)) return std::nullopt;
  text.remove_prefix(prefix.size());
  if (text.size() != kSessionDigits + kResponseDigits || !is_hex(text)) return std::nullopt;
  return ResponseId{std::string(text.substr(0, kSessionDigits)), std::string(text.substr(kSessionDigits))};
}

}  // namespace

std::string response_id_text(const ResponseId& id) {
  return std::format("{}{}{}", kResponsePrefix, id.session, id.response);
}

std::optional<ResponseId> parse_response_id(std::string_view text) {
  return parse_id(kResponsePrefix, text);
}

std::string message_id_text(const ResponseId& id) {
  return std::format("{}{}{}", kMessagePrefix, id.session, id.response);
}

std::optional<ResponseId> parse_message_id(std::string_view text) {
  return parse_id(kMessagePrefix, text);
}

std::string conversation_id_text(std::string_view session) {
  return std::format("{}{}", kConversationPrefix, session);
}

std::optional<std::string> parse_conversation_id(std::string_view text) {
  if (!text.starts_with(kConversationPrefix)) return std::nullopt;
  text.remove_prefix(kConversationPrefix.size());
  if (text.size() != kSessionDigits || !is_hex(text)) return std::nullopt;
  return std::string(text);
}

}  // namespace uma::wire
