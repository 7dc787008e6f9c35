// The decoders of decode_picture(), one for each format. All require a file that check_image() has accepted, and return
// E_PROTO_003 for one that cannot be decoded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/error.h"
#include "image/file_bytes.h"
#include "llm/picture/picture.h"

namespace uma::image {

// The values of EXIF's orientation: how the stored rows and columns are to be shown. 1: as they are.
inline constexpr int kUpright = 1;

struct Decoded {
  llm::Picture picture;
  int orientation = kUpright;
};

[[nodiscard]] Expected<Decoded> decode_png(File file);
[[nodiscard]] Expected<Decoded> decode_jpeg(File file);
[[nodiscard]] Expected<Decoded> decode_webp(File file);
[[nodiscard]] Expected<Decoded> decode_gif(File file);
[[nodiscard]] Expected<Decoded> decode_bmp(File file);

// The orientation in the data of EXIF; kUpright if there is none.
[[nodiscard]] int orientation_of(File exif);

[[nodiscard]] std::unexpected<Error> undecodable(std::string_view format, std::string_view why);

// A white picture.
[[nodiscard]] llm::Picture white_picture(std::int64_t width, std::int64_t height);

// Writes `levels` (RGBA) over the white row of a picture.
void lay_over_white(std::span<const std::uint8_t> rgba, std::span<std::uint8_t> rgb);

// The row `y` of a picture.
[[nodiscard]] inline std::span<std::uint8_t> row_of(llm::Picture& picture, std::int64_t y) {
  const auto bytes = static_cast<std::size_t>(picture.width) * 3;
  return std::span(picture.levels).subspan(static_cast<std::size_t>(y) * bytes, bytes);
}

}  // namespace uma::image
