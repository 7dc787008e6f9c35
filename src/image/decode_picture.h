// Decodes pictures as a person sees them: turned as EXIF says, over white where they are transparent, and of an animation the
// first one. The libraries of the formats do it: libpng, libjpeg, libwebp and giflib; a BMP file is read here.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <stop_token>

#include "core/error.h"
#include "llm/picture/picture.h"

namespace uma::image {

// False only for pictures of sessions that an older version has encoded: it did not turn them.
enum class Turns : bool { no, yes };

// Requires: check_image() has accepted the file. Pure, any thread. Takes up to about 14 bytes of memory for each pixel. Errors:
// E_PROTO_003.
[[nodiscard]] Expected<llm::Picture> decode_picture(std::span<const std::byte> file, Turns turns = Turns::yes);

// decode_picture(), which nothing ends early.
[[nodiscard]] inline Expected<llm::Picture> decode_picture_here(std::span<const std::byte> file, Turns turns,
                                                                const std::stop_token& /*end*/) {
  return decode_picture(file, turns);
}
// A replacement for it that may do it elsewhere, and may block until `end` is requested. Called on any thread.
using DecodePicture =
    std::function<Expected<llm::Picture>(std::span<const std::byte> file, Turns turns, const std::stop_token& end)>;

}  // namespace uma::image
