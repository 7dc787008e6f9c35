// The tokens that represent the rows of an image in a chain. They are outside every vocabulary, and computed from the image,
// its encoder and the number of the row. So the same image at the same place has the same tokens, in every session and after
// every restart.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/ids.h"

namespace uma::llm {

inline constexpr Token kImageTokensBegin = 1 << 30;  // Larger than any vocabulary.

[[nodiscard]] constexpr bool is_image_token(Token token) {
  return token >= kImageTokensBegin;
}

// `image` is the hash of the picture's pixels or of the clip's file, `projector` is ProjectorFacts::identity.
[[nodiscard]] Token image_token(std::string_view image, std::string_view projector, std::int32_t row);

}  // namespace uma::llm
