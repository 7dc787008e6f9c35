#include "wire/response_ids.h"

#include <algorithm>
#include <cstddef>
#include <format>

namespace uma::wire {
namespace {

constexpr std::string_view kResponsePrefix = "resp_";
constexpr std::string_view kConversationPrefix = "conv_";
constexpr std::size_t kSessionDigits = 32;
constexpr std::size_t kResponseDigits = 16;

bool is_hex(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace

std::string response_id_text(const ResponseId& id) {
  return std::format("{}{}{}", kResponsePrefix, id.session, id.response);
}

std::optional<ResponseId> parse_response_id(std::string_view text) {
  if (!text.starts_with(kResponsePrefix)) return std::nullopt;
  text.remove_prefix(kResponsePrefix.size());
  if (text.size() != kSessionDigits + kResponseDigits || !is_hex(text)) return std::nullopt;
  return ResponseId{std::string(text.substr(0, kSessionDigits)), std::string(text.substr(kSessionDigits))};
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
