// Reads the bytes of an image or a clip from its source in a request.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/bytes.h"
#include "core/error.h"
#include "core/image.h"
#include "image/image_header.h"

namespace uma::image {

// Reads the file of an image or a clip, and checks the header of an image (image_header.h), which may have `pixels_max` pixels.
// Paths must be below `allowed_dirs`.
// Every step is opened relative to the folder before it without following symbolic links, so neither a link nor a concurrent
// rename leads out. Only regular files are read. Blocks on the disk. Errors: E_PROTO_003 with the reason; a missing file and a
// forbidden file have the same error.
[[nodiscard]] Expected<Bytes> read_image(const ImageSource& source, std::span<const std::string> allowed_dirs,
                                         std::int64_t pixels_max = kImagePixelsMax);

}  // namespace uma::image
