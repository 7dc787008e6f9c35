// Base64 of RFC 4648.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace uma {

// Appends the text of `bytes`, 4 characters for every 3.
void append_base64(std::string& out, std::span<const std::byte> bytes);
// `bytes` as base64.
[[nodiscard]] std::string base64_of(std::string_view bytes);

// Decodes `text`; nullopt for a text that append_base64 never produces.
[[nodiscard]] std::optional<Bytes> decode_base64(std::string_view text);
// Decodes what encoders of others write: also with blanks and line breaks, without padding, and with the digits - and _ of
// section 5. Padding in excess and bits behind the last byte are ignored. Nullopt for another text.
[[nodiscard]] std::optional<Bytes> decode_any_base64(std::string_view text);

}  // namespace uma
