#include "kv/catalog/record_check.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/utf8.h"
#include "core/metadata.h"

namespace uma::kv {
namespace {

constexpr std::size_t kNameBytesMax = 128;
constexpr std::size_t kModelBytesMax = 1024;
constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};

bool is_name(std::string_view text, std::size_t bytes_max) {
  return text.size() <= bytes_max && !text.contains('\0') && is_utf8(text);
}

bool are_messages(std::span<const ChatMessage> messages) {
  return std::ranges::all_of(messages, [](const ChatMessage& message) {
    return std::ranges::contains(kRoles, std::string_view(message.role)) && is_utf8(message.content) && is_utf8(message.extra);
  });
}

bool is_in_range(std::int64_t number) {
  return number >= 0 && number <= kSessionCountMax;
}

// Whether every token, and in a chat every message, belongs to a turn, except those kept before the first turn.
bool are_turns(const SessionRecord& record) {
  const bool is_cut = record.turns_dropped > 0;
  if (is_cut && record.on_full != OnFull::shift) return false;
  if (record.turns.empty()) {
    return std::ssize(record.chain) == (is_cut ? record.n_keep : 0) && (is_cut || record.messages.empty());
  }
  const Turn& first = record.turns.front();
  if (first.tokens_begin != (is_cut ? record.n_keep : 0) || (!is_cut && first.messages_begin != 0)) return false;
  return count_sound_turns(record, record.turns, std::ssize(record.chain), record.messages, std::ssize(record.chain),
                           std::ssize(record.messages)) == record.turns.size();
}

}  // namespace

std::size_t count_sound_turns(const SessionHead& head, std::span<const Turn> turns, std::int64_t tokens_count,
                              std::span<const ChatMessage> messages, std::int64_t tokens_end, std::int64_t messages_end) {
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const bool is_last = i + 1 == turns.size();
    // Offsets from a file may be any 32-bit numbers, so sums use 64 bits.
    const std::int64_t tokens_begin = turns[i].tokens_begin;
    const std::int64_t reply_begin = turns[i].reply_begin;
    const std::int64_t tokens_next = is_last ? tokens_end : turns[i + 1].tokens_begin;
    const std::int64_t messages_begin = turns[i].messages_begin;
    const std::int64_t messages_next = is_last ? messages_end : turns[i + 1].messages_begin;
    const bool has_tokens = tokens_begin >= 0 && reply_begin >= tokens_begin && tokens_next >= reply_begin &&
                            tokens_next > tokens_begin && tokens_next <= tokens_count;
    if (!has_tokens) return i;
    if (head.mode != SessionMode::chat) {
      if (messages_begin != 0 || messages_next != 0) return i;
      continue;
    }
    const bool has_messages =
        messages_begin >= 0 && messages_next >= messages_begin + 2 && messages_next <= std::ssize(messages);
    if (!has_messages || messages[static_cast<std::size_t>(messages_next) - 1].role != "assistant") return i;
  }
  return turns.size();
}

std::string_view impossible_part(const SessionRecord& record) {
  if (static_cast<std::uint32_t>(record.mode) > kModeMax || record.created_s < 0 || record.ttl_s < 0 ||
      record.ttl_s > kTtlSecondsMax) {
    return "its mode or date is invalid";
  }
  if (static_cast<std::uint32_t>(record.on_full) > kOnFullMax || !is_in_range(record.n_keep) || record.turns_dropped < 0 ||
      !is_in_range(record.turns_dropped + std::int64_t{std::ssize(record.turns)})) {
    return "its on_full setting is invalid";
  }
  if (!is_name(record.name, kNameBytesMax) || !is_name(record.model, kModelBytesMax))
    return "its name or model name is invalid";
  if (!is_in_range(std::ssize(record.chain) + std::ssize(record.pending)) ||
      !is_in_range(std::ssize(record.messages) + std::ssize(record.pending_messages))) {
    return "it is too long";
  }
  if (!is_utf8(record.tools) || !is_utf8(record.template_arguments) || !are_messages(record.messages) ||
      !are_messages(record.pending_messages)) {
    return "a text in it is not UTF-8, or a role is unknown";
  }
  if (!metadata_pairs(record.metadata)) return "its metadata is not an object of texts";
  if (!is_name(record.parent.value, kNameBytesMax) || !is_in_range(record.fork_turn)) return "its parent is invalid";
  const auto is_token = [](Token token) { return token >= 0; };
  if (!std::ranges::all_of(record.chain, is_token) || !std::ranges::all_of(record.pending, is_token)) {
    return "a token is negative";
  }
  const bool has_input = !record.chain.empty() || !record.pending.empty();
  const bool is_chat = record.mode == SessionMode::chat;
  const bool has_messages = !record.messages.empty() || !record.pending_messages.empty();
  if ((record.mode == SessionMode::automatic && has_input) || (!is_chat && has_messages) ||
      (is_chat && !record.pending.empty() && record.pending_messages.empty())) {
    return "its contents do not fit its mode";
  }
  if (!are_turns(record)) return "its turns do not fit its tokens or messages";
  return {};
}

}  // namespace uma::kv
