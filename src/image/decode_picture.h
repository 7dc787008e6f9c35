// Decodes pictures as a person sees them: turned as EXIF says, over white where they are transparent, and of an animation the
// first one. The libraries of the formats do it: libpng, libjpeg, libwebp and giflib; a BMP file is read here.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "core/error.h"
#include "llm/picture.h"

namespace uma::image {

// False only for pictures of sessions that an older version has encoded: it did not turn them.
enum class Turns : bool { no, yes };

// Requires: check_image() has accepted the file. Pure, any thread. Takes up to about 14 bytes of memory for each pixel. Errors:
// E_PROTO_003.
[[nodiscard]] Expected<llm::Picture> decode_picture(std::span<const std::byte> file, Turns turns = Turns::yes);

// A replacement for decode_picture() that may do it elsewhere, and may block. Called on any thread.
using DecodePicture = std::function<Expected<llm::Picture>(std::span<const std::byte> file, Turns turns)>;

}  // namespace uma::image
