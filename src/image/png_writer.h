// Writes pictures as PNG files. Pure, any thread; umad calls it on uma-draw between two steps.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/error.h"

namespace uma::image {

struct PngPicture {
  std::span<const std::uint8_t> levels;  // [height, width, 3]: rows from the top, RGB.
  std::int32_t width = 0;                // Pixels.
  std::int32_t height = 0;
  std::int32_t scale = 1;  // Each pixel becomes a square of so many pixels of the file.
};

// The bytes of the file, which are the same for the same input and versions of libpng and zlib. `parameters` is UTF-8 without
// NUL: a text of the file under the keyword that image programs read the prompt from; empty: none. Errors: E_RUNTIME_001.
[[nodiscard]] Expected<std::string> write_png(const PngPicture& picture, std::string_view parameters = "");

}  // namespace uma::image
