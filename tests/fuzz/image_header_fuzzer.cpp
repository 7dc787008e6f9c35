// Property: whatever the bytes are, the check of an image ends, and what it lets through has a picture within the limits.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "capability/image_header.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace uma::capability;
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
