// Reads pictures that drawings begin with.
#pragma once

#include <cstdint>
#include <vector>

#include "core/error.h"
#include "core/image.h"
#include "image/decode_picture.h"

namespace uma::image {

// The middle of the picture that has the shape of width × height, brought to that size: each pixel is the mean of those that it
// covers, or the nearest one. Pure. Requires: no side is 0.
[[nodiscard]] std::vector<std::uint8_t> fitted(const llm::Picture& picture, std::int32_t width, std::int32_t height);

// Reads, checks and decodes a picture of up to 16 million pixels and fits it. Requires: the source is data. Errors:
// E_PROTO_003.
[[nodiscard]] Expected<std::vector<std::uint8_t>> read_fitted(const ImageSource& source, std::int32_t width,
                                                              std::int32_t height,
                                                              const DecodePicture& decode = decode_picture_here,
                                                              const std::stop_token& end = {});

}  // namespace uma::image
