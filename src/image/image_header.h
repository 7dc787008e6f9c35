// Checks an image's file before a decoder opens it: the format, the size of the picture, and whether the file is complete. The
// memory and time of a decoder depend on the size of the picture, and a few bytes can claim any size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/error.h"

namespace uma::image {

inline constexpr std::size_t kImageBytesMax = 32ul << 20;
inline constexpr std::int64_t kImagePixelsMax = 64'000'000;
inline constexpr std::int64_t kImageSideMax = 16'384;

enum class ImageKind : std::uint8_t { png, jpeg, webp, gif, bmp };

struct ImageHeader {
  ImageKind kind = ImageKind::png;
  std::int64_t width = 0;
  std::int64_t height = 0;
};

// The kind of the file by its first bytes. Errors: E_PROTO_003, which names the format of a file that is another one.
[[nodiscard]] Expected<ImageKind> image_kind(std::span<const std::byte> file);

// Pure. O(bytes); for PNG also the time of decompression. Errors: E_PROTO_003 with the reason: an unsupported format, too
// large, truncated, too little data for its picture, or too much.
[[nodiscard]] Expected<ImageHeader> check_image(std::span<const std::byte> file);

}  // namespace uma::image
