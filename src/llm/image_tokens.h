// What stands for the rows of an image in a chain: tokens that no vocabulary has, made from the image, from what encodes it and
// from the row's number. So the same image at the same place is the same tokens, in every session and after every restart.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/ids.h"

namespace uma::llm {

inline constexpr Token kImageTokensBegin = 1 << 30;  // larger than any vocabulary

[[nodiscard]] constexpr bool is_image_token(Token token) {
  return token >= kImageTokensBegin;
}

// `image`: the hash of its file. `projector`: ProjectorFacts::identity.
[[nodiscard]] Token image_token(std::string_view image, std::string_view projector, std::int32_t row);

}  // namespace uma::llm
