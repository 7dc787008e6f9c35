// Property: the check of an image ends for any bytes, and an accepted picture is within the limits.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "image/image_header.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace uma::image;
  const auto header = check_image(std::as_bytes(std::span(data, size)));
  if (!header) {
    UMA_CHECK(header.error().code == uma::ErrorCode::proto_field);
    return 0;
  }
  UMA_CHECK(header->width >= 1 && header->width <= kImageSideMax);
  UMA_CHECK(header->height >= 1 && header->height <= kImageSideMax);
  UMA_CHECK(header->width * header->height <= kImagePixelsMax);
  return 0;
}
