#include "json/json_writer.h"

#include <array>
#include <charconv>
#include <cmath>

#include "base/utf8.h"

namespace uma::json {
namespace {

// Bytes that must be escaped in a JSON string.
constexpr std::array<bool, 256> kNeedsEscape = [] {
  std::array<bool, 256> table{};
  for (std::size_t byte = 0; byte < 0x20; ++byte) table[byte] = true;
  table['"'] = true;
  table['\\'] = true;
  return table;
}();

void append_escaped(std::string& out, unsigned char byte) {
  switch (byte) {
    case '"':
      out.append("\\\"");
      return;
    case '\\':
      out.append("\\\\");
      return;
    case '\n':
      out.append("\\n");
      return;
    case '\r':
      out.append("\\r");
      return;
    case '\t':
      out.append("\\t");
      return;
    default:
      constexpr std::string_view kHex = "0123456789abcdef";
      out.append("\\u00");
      out.push_back(kHex[byte >> 4]);
      out.push_back(kHex[byte & 0xf]);
  }
}

template <class T>
void append_decimal(std::string& out, T value) {
  std::array<char, 24> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  out.append(digits.data(), end);
}

}  // namespace

void append_string(std::string& out, std::string_view text) {
  if (!is_utf8(text)) {
    append_string(out, replace_invalid_utf8(text));
    return;
  }
  out.push_back('"');
  std::size_t plain_from = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (!kNeedsEscape[byte]) continue;
    out.append(text.substr(plain_from, at - plain_from));
    append_escaped(out, byte);
    plain_from = at + 1;
  }
  out.append(text.substr(plain_from));
  out.push_back('"');
}

void append_number(std::string& out, double value, int decimals) {
  if (!std::isfinite(value)) {
    out.append("null");
    return;
  }
  std::array<char, 32> digits;
  // The numbers of this protocol are times, ratios and logarithms; a number with too many digits is written with an exponent.
  auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, std::chars_format::fixed, decimals);
  if (end.ec != std::errc())
    end = std::to_chars(digits.data(), digits.data() + digits.size(), value, std::chars_format::scientific, 9);
  std::string_view text(digits.data(), end.ptr);
  if (text.find('e') == std::string_view::npos && text.contains('.')) {
    text = text.substr(0, text.find_last_not_of('0') + 1);
    if (text.ends_with('.')) text.remove_suffix(1);
  }
  out.append(text);
}

void append_float(std::string& out, float value) {
  if (!std::isfinite(value)) {
    out.append("null");
    return;
  }
  std::array<char, 32> digits;
  out.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr);
}

void append_integer(std::string& out, std::int64_t value) {
  append_decimal(out, value);
}
void append_integer(std::string& out, std::uint64_t value) {
  append_decimal(out, value);
}

std::string& ObjectWriter::begin(std::string_view name) {
  if (!empty_) out_.push_back(',');
  empty_ = false;
  out_.push_back('"');
  out_.append(name);
  out_.append("\":");
  return out_;
}

}  // namespace uma::json
