#include "base/base64.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace uma {
namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::uint8_t kNoDigit = 64;

constexpr std::array<std::uint8_t, 256> kValues = [] {
  std::array<std::uint8_t, 256> values{};
  values.fill(kNoDigit);
  for (std::uint8_t i = 0; i < kNoDigit; ++i) values[static_cast<unsigned char>(kDigits[i])] = i;
  return values;
}();

}  // namespace

void append_base64(std::string& out, std::span<const std::byte> bytes) {
  out.reserve(out.size() + (bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const auto group = bytes.subspan(i, std::min<std::size_t>(3, bytes.size() - i));
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 3; ++k) bits = bits << 8 | (k < group.size() ? std::to_integer<std::uint32_t>(group[k]) : 0);
    for (std::size_t k = 0; k < 4; ++k) out += k <= group.size() ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
  }
}

std::string base64_of(std::string_view bytes) {
  std::string text;
  append_base64(text, std::as_bytes(std::span(bytes)));
  return text;
}

std::optional<Bytes> decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  Bytes bytes(text.size() / 4 * 3 - padding);
  std::size_t at = 0;
  for (std::size_t i = 0; i < text.size(); i += 4) {
    std::uint32_t bits = 0;
    const std::size_t digits = i + 4 == text.size() ? 4 - padding : 4;
    for (std::size_t k = 0; k < 4; ++k) {
      const std::uint8_t value = k < digits ? kValues[static_cast<unsigned char>(text[i + k])] : 0;
      if (value == kNoDigit) return std::nullopt;
      bits = bits << 6 | value;
    }
    const std::size_t count = digits - 1;
    // Unused bits must be zero, so that each value has exactly one text.
    if (count < 3 && (bits & ((1u << (24 - 8 * count)) - 1)) != 0) return std::nullopt;
    for (std::size_t k = 0; k < count; ++k) bytes[at++] = static_cast<std::byte>(bits >> (16 - 8 * k) & 255);
  }
  return bytes;
}

std::optional<Bytes> decode_any_base64(std::string_view text) {
  Bytes bytes;
  bytes.reserve(text.size() / 4 * 3 + 3);
  std::uint32_t bits = 0;
  int digits = 0;   // Digits of the current group of four.
  int padding = 0;  // Only blanks and more of it may follow.
  for (const char c : text) {
    if (std::string_view(" \t\r\n").contains(c)) continue;
    if (c == '=') {
      ++padding;
      continue;
    }
    const std::uint8_t value = c == '-' ? 62 : c == '_' ? 63 : kValues[static_cast<unsigned char>(c)];
    if (value == kNoDigit || padding > 0) return std::nullopt;
    bits = bits << 6 | value;
    if (++digits < 4) continue;
    for (const int shift : {16, 8, 0}) bytes.push_back(static_cast<std::byte>(bits >> shift & 255));
    bits = 0;
    digits = 0;
  }
  if (digits == 1 || padding > 2) return std::nullopt;
  if (digits >= 2) bytes.push_back(static_cast<std::byte>(bits >> (6 * digits - 8) & 255));
  if (digits == 3) bytes.push_back(static_cast<std::byte>(bits >> 2 & 255));
  return bytes;
}

}  // namespace uma
