#include "chat/calls/call_pattern.h"

#include <algorithm>
#include <array>
#include <utility>

namespace uma::chat {
namespace {

using Kind = PatternPart::Kind;

constexpr std::string_view kPatternBlanks = " \t\r\n";
constexpr std::string_view kNoName = " \t\r\n<>[](){}\"'=`,;";  // Characters that end a name or an id.
constexpr std::size_t kAnyBytesMax = 64;
constexpr std::size_t kHeadBytesMax = 1024;

constexpr std::array<std::pair<std::string_view, Kind>, 7> kPlaceholders{{
    {"{line}", Kind::line},
    {"{name}", Kind::name},
    {"{id}", Kind::id},
    {"{index}", Kind::index},
    {"{any}", Kind::any},
    {"{arguments}", Kind::arguments},
    {"{function}", Kind::function},
}};

}  // namespace

Pattern pattern_of(std::string_view text) {
  Pattern pattern;
  const auto take = [&](Kind kind, std::size_t length) {
    pattern.push_back({kind, text.substr(0, length)});
    text.remove_prefix(length);
  };
  while (!text.empty()) {
    const auto placeholder = std::ranges::find_if(kPlaceholders, [&](const auto& one) { return text.starts_with(one.first); });
    if (placeholder != kPlaceholders.end()) {
      take(placeholder->second, placeholder->first.size());
    } else if (const std::size_t blanks = blanks_at_begin(text); blanks > 0) {
      take(Kind::blanks, blanks);
    } else {
      std::size_t end = 1;
      const auto begins_placeholder = [&] {
        return std::ranges::any_of(kPlaceholders, [&](const auto& one) { return text.substr(end).starts_with(one.first); });
      };
      while (end < text.size() && !kPatternBlanks.contains(text[end]) && !begins_placeholder()) ++end;
      take(Kind::text, end);
    }
  }
  return pattern;
}

Found begins_with(std::string_view text, std::string_view mark) {
  if (text.starts_with(mark)) return Found::yes;
  return mark.starts_with(text) ? Found::maybe : Found::no;
}

MarkPlace find_mark(std::string_view text, std::string_view mark, std::size_t bytes_before_max) {
  const std::size_t at = text.find(mark);
  const bool is_there = at != std::string_view::npos;
  const std::size_t before = is_there ? at : text.size() - begun_at_end(text, mark);
  if (before > bytes_before_max) return {.found = Found::no, .at = before};
  return {.found = is_there ? Found::yes : Found::maybe, .at = before};
}

CallHead match_head(std::span<const PatternPart> pattern, std::string_view text, std::string_view begins,
                    std::span<const std::string> spaced_names) {
  CallHead head;
  std::string_view rest = text;
  const auto ended = [&](Found found) {
    head.length = text.size() - rest.size();
    const std::size_t bytes = found == Found::maybe ? text.size() : head.length;
    head.found = bytes > kHeadBytesMax ? Found::no : found;
    return head;
  };
  for (const PatternPart& part : pattern) {
    switch (part.kind) {
      case Kind::text:
        if (!rest.starts_with(part.text)) return ended(part.text.starts_with(rest) ? Found::maybe : Found::no);
        rest.remove_prefix(part.text.size());
        break;
      case Kind::blanks:
        rest.remove_prefix(blanks_at_begin(rest));
        break;
      case Kind::line:
        if (!rest.starts_with('\n')) return ended(rest.empty() ? Found::maybe : Found::no);
        rest.remove_prefix(1);
        break;
      case Kind::name:
      case Kind::id: {
        std::size_t length = std::min(rest.find_first_of(kNoName), rest.size());
        for (const std::string& name : spaced_names) {
          if (rest.starts_with(name)) length = std::max(length, name.size());
          if (rest.size() < name.size() && name.starts_with(rest)) return ended(Found::maybe);
        }
        if (length > kNameBytesMax) return ended(Found::no);
        if (length == rest.size()) return ended(Found::maybe);
        if (length == 0) return ended(Found::no);
        (part.kind == Kind::name ? head.name : head.id) = rest.substr(0, length);
        rest.remove_prefix(length);
        break;
      }
      case Kind::index:
      case Kind::any: {
        const std::string_view until = pattern[static_cast<std::size_t>(&part - pattern.data()) + 1].text;
        const MarkPlace place = find_mark(rest, until, kAnyBytesMax);
        const bool is_plain = rest.substr(0, place.at).find_first_of("<\n") == std::string_view::npos;
        if (place.found != Found::yes || !is_plain) return ended(is_plain ? place.found : Found::no);
        rest.remove_prefix(place.at);
        break;
      }
      case Kind::arguments:
      case Kind::function:
        if (rest.empty()) return ended(Found::maybe);
        return ended(begins.empty() || begins.contains(rest.front()) ? Found::yes : Found::no);
    }
  }
  return ended(Found::yes);
}

bool is_function_name(std::string_view name) {
  return !name.empty() && name.size() <= kNameBytesMax;
}

std::size_t blanks_at_begin(std::string_view text) {
  return std::min(text.find_first_not_of(kPatternBlanks), text.size());
}

std::string_view without_blanks_at_end(std::string_view text, std::size_t blanks_known) {
  const std::size_t blanks = std::min(blanks_known, text.size());
  const std::size_t last = text.substr(blanks).find_last_not_of(kPatternBlanks);
  return text.substr(0, last == std::string_view::npos ? 0 : blanks + last + 1);
}

std::string_view without_blanks(std::string_view text) {
  text.remove_prefix(blanks_at_begin(text));
  return without_blanks_at_end(text);
}

std::size_t begun_at_end(std::string_view text, std::string_view mark) {
  for (std::size_t length = std::min(mark.size() - 1, text.size()); length > 0; --length) {
    if (text.ends_with(mark.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace uma::chat
