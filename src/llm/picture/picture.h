// The pixels of a picture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace uma::llm {

struct Picture {
  std::int32_t width = 0;  // Pixels.
  std::int32_t height = 0;
  std::vector<std::uint8_t> levels;  // [height, width, 3]: rows from the top, RGB.
  bool operator==(const Picture&) const = default;
};

// The SHA-256 of the size and the levels, in hexadecimal digits.
[[nodiscard]] std::string pixels_hash(const Picture& picture);

}  // namespace uma::llm
