#include "wire/openai/sealed_reasoning.h"

#include <cstddef>
#include <format>
#include <span>

#include "base/base64.h"
#include "base/sha256.h"
#include "base/utf8.h"

namespace uma::wire {
namespace {

constexpr std::string_view kSealPrefix = "uma1.";
constexpr std::size_t kSealDigits = 16;

std::string checksum_of(std::string_view text) {
  const Sha256Digest digest = sha256(text);
  std::string digits;
  for (std::size_t i = 0; i < kSealDigits / 2; ++i) digits += std::format("{:02x}", static_cast<unsigned char>(digest[i]));
  return digits;
}

}  // namespace

std::string sealed_reasoning(std::string_view text) {
  std::string sealed(kSealPrefix);
  append_base64(sealed, std::as_bytes(std::span(text)));
  sealed += '.';
  sealed += checksum_of(text);
  return sealed;
}

std::string reasoning_of(std::string_view sealed) {
  if (!sealed.starts_with(kSealPrefix)) return "";
  sealed.remove_prefix(kSealPrefix.size());
  const std::size_t dot = sealed.find('.');
  if (dot == std::string_view::npos) return "";
  const std::string_view digits = sealed.substr(dot + 1);
  const auto bytes = decode_base64(sealed.substr(0, dot));
  if (!bytes) return "";
  std::string text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  const bool is_sound = checksum_of(text) == digits && is_utf8(text) && !text.contains('\0');
  return is_sound ? text : "";
}

}  // namespace uma::wire
