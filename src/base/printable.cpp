#include "base/printable.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <format>
#include <utility>

#include "base/utf8.h"

namespace uma {
namespace {

// Characters that show nothing, first and last code; the list of page/src/visible_text.ts, and U+061C.
constexpr std::array<std::pair<std::uint32_t, std::uint32_t>, 6> kInvisible = {
    {{0x061C, 0x061C}, {0x200B, 0x200B}, {0x200E, 0x200F}, {0x202A, 0x202E}, {0x2060, 0x2069}, {0xFEFF, 0xFEFF}}};

// Requires: `text` is valid UTF-8.
void append_printable(std::string& out, std::string_view text, std::string_view kept) {
  for (std::size_t at = 0; at < text.size();) {
    char32_t decoded = 0;
    const std::size_t length = decode_code_point(text.substr(at), decoded);
    const std::string_view character = text.substr(at, length);
    at += length;
    const auto code = static_cast<std::uint32_t>(decoded);
    const auto has_code = [&](const auto& range) { return range.first <= code && code <= range.second; };
    if (code < 0x20 && !kept.contains(character)) {
      out += {'^', static_cast<char>(code + '@')};
    } else if (code == 0x7F) {
      out += "^?";
    } else if (length == 2 && code < 0xA0) {
      out += std::format("<{:02X}>", code);
    } else if (std::ranges::any_of(kInvisible, has_code)) {
      out += std::format("<U+{:04X}>", code);
    } else {
      out += character;
    }
  }
}

std::string made_printable(std::string_view text, std::string_view kept) {
  if (std::ranges::all_of(text, [](char c) { return c >= ' ' && c < 0x7F; })) return std::string(text);
  std::string out;
  out.reserve(text.size());
  append_printable(out, is_utf8(text) ? text : replace_invalid_utf8(text), kept);
  return out;
}

}  // namespace

std::string printable(std::string_view text) {
  return made_printable(text, "\n\t");
}

std::string printable_line(std::string_view text) {
  return made_printable(text, "");
}

}  // namespace uma
