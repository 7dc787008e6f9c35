// The names of images. The id of a picture is the SHA-256 of its file, then that of its pixels (llm/picture.h), in hexadecimal
// digits. The file is what is kept, and shown again; the tokens of a chain are made from the pixels, so the same picture in two
// files has the same KV. The id of a clip of sound is the SHA-256 of its file alone, and so is that of a picture in a session
// that was begun when tokens were made from files.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace uma::image {

inline constexpr std::size_t kHashDigits = 64;

// The name of the file.
[[nodiscard]] inline std::string file_of(std::string_view id) {
  return std::string(id.substr(0, kHashDigits));
}
[[nodiscard]] inline bool shows_pixels(std::string_view id) {
  return id.size() > kHashDigits;
}
// The part of the id that tokens are made from (llm/image_tokens.h).
[[nodiscard]] inline std::string_view content_of(std::string_view id) {
  return shows_pixels(id) ? id.substr(kHashDigits) : id;
}

}  // namespace uma::image
