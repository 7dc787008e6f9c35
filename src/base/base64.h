// Base64 of RFC 4648, section 4: with padding, without line breaks.
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
// The text of the characters.
[[nodiscard]] std::string base64_of(std::string_view bytes);

// Decodes `text`; nullopt for a text that append_base64 never produces.
[[nodiscard]] std::optional<Bytes> decode_base64(std::string_view text);

}  // namespace uma
