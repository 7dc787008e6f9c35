// Decodes the files of pictures, by the library that also does so for models that see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/error.h"

namespace uma::llm {

struct DecodedPicture {
  std::int32_t width = 0;  // Pixels.
  std::int32_t height = 0;
  std::vector<std::uint8_t> levels;  // [height, width, 3]: rows from the top, RGB.
};

// Requires: image::check_image() has accepted the file. Errors: E_PROTO_003.
[[nodiscard]] Expected<DecodedPicture> decode_picture(std::span<const std::byte> file);

}  // namespace uma::llm
