#include "engine/session/session_listing.h"

#include <algorithm>
#include <charconv>
#include <format>
#include <utf8proc.h>

#include "base/utf8.h"
#include "core/metadata.h"

namespace uma::engine {
namespace {

// Makes letters small. `text` is UTF-8.
std::string lower_case(std::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  const auto* next = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (auto left = static_cast<utf8proc_ssize_t>(text.size()); left > 0;) {
    if (*next < 0x80) {
      const auto byte = static_cast<char>(*next++);
      lower += byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte - 'A' + 'a') : byte;
      --left;
      continue;
    }
    utf8proc_int32_t c = 0;
    const utf8proc_ssize_t bytes = utf8proc_iterate(next, left, &c);
    if (bytes < 1) break;
    append_utf8(lower, static_cast<char32_t>(utf8proc_tolower(c)));
    next += bytes;
    left -= bytes;
  }
  return lower;
}

// Whether the text has the form of an id that the engine makes.
bool is_session_id(std::string_view text) {
  constexpr std::size_t kDigits = 32;
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return text.size() == kDigits && std::ranges::all_of(text, is_digit);
}

}  // namespace

ListPosition position_of(const kv::SessionSummary& session, SessionOrder order) {
  return {order == SessionOrder::oldest_first ? session.created_s : session.last_used_s, session.id};
}

std::string position_text(const ListPosition& position) {
  return std::format("{}.{}", position.first, position.second.value);
}

std::optional<ListPosition> parse_position(std::string_view text) {
  ListPosition position;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), position.first);
  const std::string_view rest = text.substr(static_cast<std::size_t>(end - text.data()));
  if (problem != std::errc() || !rest.starts_with('.') || !is_session_id(rest.substr(1))) return std::nullopt;
  position.second.value = rest.substr(1);
  return position;
}

SessionSearch::SessionSearch(std::string_view query) {
  constexpr std::string_view kBlanks = " \t\r\n";
  std::size_t begin = query.find_first_not_of(kBlanks);
  while (begin != std::string_view::npos && words_.size() < kSearchWordsMax) {
    const std::size_t end = std::min(query.find_first_of(kBlanks, begin), query.size());
    words_.push_back(lower_case(query.substr(begin, end - begin)));
    begin = query.find_first_not_of(kBlanks, end);
  }
}

bool SessionSearch::matches(const kv::SessionSummary& session) const {
  if (words_.empty()) return true;
  std::string text = session.name;
  for (const MetadataPair& pair : metadata_pairs(session.metadata).value_or(std::vector<MetadataPair>())) {
    text += '\n';  // No word has it.
    append_metadata_text(text, pair.value);
  }
  const std::string lower = lower_case(text);
  return std::ranges::all_of(words_, [&](const std::string& word) { return lower.contains(word); });
}

}  // namespace uma::engine
