#include "uma-cli/printable.h"

#include <algorithm>
#include <cwchar>

namespace uma::cli {
namespace {

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
