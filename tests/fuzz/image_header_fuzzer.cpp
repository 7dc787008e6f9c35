// Property: the check of an image ends for any bytes, an accepted picture is within the limits, and its decoder returns a
// picture of that size or an error.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "image/decode_picture.h"
#include "image/image_header.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace uma::image;
  const auto file = std::as_bytes(std::span(data, size));
  const auto header = check_image(file);
  if (!header) {
    UMA_CHECK(header.error().code == uma::ErrorCode::proto_field);
    return 0;
  }
  UMA_CHECK(header->width >= 1 && header->width <= kImageSideMax);
  UMA_CHECK(header->height >= 1 && header->height <= kImageSideMax);
  UMA_CHECK(header->width * header->height <= kImagePixelsMax);
  constexpr std::int64_t kPixelsMax = 100'000;  // So that there is time for other files.
  if (header->width * header->height > kPixelsMax) return 0;
  const auto picture = decode_picture(file);
  if (!picture) {
    UMA_CHECK(picture.error().code == uma::ErrorCode::proto_field);
    return 0;
  }
  const std::int64_t pixels = std::int64_t{picture->width} * picture->height;
  UMA_CHECK(pixels == header->width * header->height);
  UMA_CHECK(picture->levels.size() == static_cast<std::size_t>(pixels) * 3);
  return 0;
}
