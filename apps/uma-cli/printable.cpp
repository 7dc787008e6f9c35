#include "uma-cli/printable.h"

#include <algorithm>
#include <cstdint>
#include <cwchar>
#include <format>

#include "base/utf8.h"

namespace uma::cli {
namespace {

void append_printable(std::string& out, std::string_view text, std::string_view kept) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<std::uint8_t>(text[at]);
    if (byte < 0x20 && !kept.contains(text[at])) {
      out += '^';
      out += static_cast<char>(byte + '@');
    } else if (byte == 0x7f) {
      out += "^?";
    } else if (byte == 0xc2 && static_cast<std::uint8_t>(text[at + 1]) < 0xa0) {
      // The text is valid UTF-8, so a continuation byte follows.
      out += std::format("<{:02X}>", static_cast<std::uint8_t>(text[++at]));
    } else {
      out += text[at];
    }
  }
}

std::string made_printable(std::string_view text, std::string_view kept) {
  std::string out;
  out.reserve(text.size());
  if (is_utf8(text)) {
    append_printable(out, text, kept);
  } else {
    append_printable(out, replace_invalid_utf8(text), kept);
  }
  return out;
}

struct Glyph {
  std::size_t bytes;
  std::size_t columns;
};

Glyph first_glyph(std::string_view text) {
  std::mbstate_t state{};
  wchar_t character = 0;
  const std::size_t bytes = std::mbrtowc(&character, text.data(), text.size(), &state);
  if (bytes == 0 || bytes > text.size()) return {1, 1};  // Not a character of this locale.
  return {bytes, static_cast<std::size_t>(std::max(0, wcwidth(character)))};
}

}  // namespace

std::string printable(std::string_view text) {
  return made_printable(text, "\n\t");
}

std::string printable_line(std::string_view text) {
  return made_printable(text, "");
}

std::size_t display_width(std::string_view text) {
  std::size_t columns = 0;
  while (!text.empty()) {
    const Glyph glyph = first_glyph(text);
    columns += glyph.columns;
    text.remove_prefix(glyph.bytes);
  }
  return columns;
}

std::string_view clip(std::string_view text, std::size_t columns) {
  std::size_t bytes = 0;
  while (bytes < text.size()) {
    const Glyph glyph = first_glyph(text.substr(bytes));
    if (glyph.columns > columns) break;
    columns -= glyph.columns;
    bytes += glyph.bytes;
  }
  return text.substr(0, bytes);
}

}  // namespace uma::cli
