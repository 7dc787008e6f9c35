// Looks at an image's file before any decoder does: of which kind it is, how large its picture, and whether it is whole. A
// decoder takes memory and time by the picture's size, which a few bytes can claim.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/error.h"

namespace uma::capability {

inline constexpr std::size_t kImageBytesMax = 32ul << 20;
inline constexpr std::int64_t kImagePixelsMax = 64'000'000;
inline constexpr std::int64_t kImageSideMax = 16'384;

enum class ImageKind : std::uint8_t { png, jpeg, bmp, gif };

struct ImageHeader {
  ImageKind kind = ImageKind::png;
  std::int64_t width = 0;
  std::int64_t height = 0;
};

// Pure. O(bytes), and for PNG as much as unpacking it. Errors: E_PROTO_003 that says what is wrong with the file: another kind,
// too large, cut off, with less data than its picture takes however well it is packed, or with more than it has.
[[nodiscard]] Expected<ImageHeader> check_image(std::span<const std::byte> file);

}  // namespace uma::capability
