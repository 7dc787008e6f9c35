#include "base/utf8.h"

#include <algorithm>
#include <cstdint>

namespace uma {
namespace {

// The requirements of a character's first byte: its length, and the bounds of the second byte.
struct Lead {
  std::size_t length;  // 0: not a first byte.
  std::uint8_t second_min;
  std::uint8_t second_max;
};

Lead lead_of(std::uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xc2) return {0, 0, 0};
  if (byte < 0xe0) return {2, 0x80, 0xbf};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3, 0x80, 0xbf};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4, 0x80, 0xbf};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

// Valid bytes of the character at `at`: its whole length, or the number of correct bytes that are present.
struct Scan {
  std::size_t matched;
  bool whole;
};

Scan scan_character(std::string_view text, std::size_t at) {
  const Lead lead = lead_of(static_cast<std::uint8_t>(text[at]));
  if (lead.length == 0) return {0, false};
  std::size_t matched = 1;
  while (matched < lead.length && at + matched < text.size()) {
    const auto byte = static_cast<std::uint8_t>(text[at + matched]);
    const bool fits = matched == 1 ? byte >= lead.second_min && byte <= lead.second_max : (byte & 0xc0) == 0x80;
    if (!fits) return {matched, false};
    ++matched;
  }
  return {matched, matched == lead.length};
}

}  // namespace

bool is_utf8(std::string_view text) {
  return valid_utf8_length(text) == text.size();
}

std::size_t valid_utf8_length(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Scan scan = scan_character(text, at);
    if (!scan.whole) break;
    at += scan.matched;
  }
  return at;
}

std::size_t incomplete_utf8_tail(std::string_view text) {
  const std::size_t longest = std::min<std::size_t>(3, text.size());
  for (std::size_t length = 1; length <= longest; ++length) {
    const std::size_t at = text.size() - length;
    const Scan scan = scan_character(text, at);
    if (scan.matched == length && !scan.whole) return length;
    if (scan.whole) return 0;
  }
  return 0;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Scan scan = scan_character(text, at);
    if (scan.whole) {
      out.append(text.substr(at, scan.matched));
      at += scan.matched;
    } else {
      out.append("\xef\xbf\xbd");
      at += std::max<std::size_t>(1, scan.matched);
    }
  }
  return out;
}

std::size_t character_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0xc0 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

std::size_t decode_code_point(std::string_view text, char32_t& character) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t first = byte(0);
  const std::size_t length = character_length(text[0]);
  if (length > text.size()) {
    character = first;
    return text.size();
  }
  character = length == 1 ? first : first & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) character = (character << 6) | (byte(i) & 0x3f);
  return length;
}

void append_utf8(std::string& out, char32_t c) {
  const auto add = [&](char32_t byte) { out += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (c < 0x80) {
    add(c);
  } else if (c < 0x800) {
    add(0xc0 | (c >> 6));
    add(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    add(0xe0 | (c >> 12));
    add(0x80 | ((c >> 6) & 0x3f));
    add(0x80 | (c & 0x3f));
  } else {
    add(0xf0 | (c >> 18));
    add(0x80 | ((c >> 12) & 0x3f));
    add(0x80 | ((c >> 6) & 0x3f));
    add(0x80 | (c & 0x3f));
  }
}

}  // namespace uma
