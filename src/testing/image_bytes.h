// The smallest images there are, for tests.
#pragma once

#include <span>
#include <string>

#include "base/base64.h"
#include "core/image.h"

namespace uma::testing {

// A BMP file of one pixel, whose blue is `blue`.
inline std::string bmp_of_one_pixel(char blue = 0) {
  std::string file(58, '\0');
  file[0] = 'B';
  file[1] = 'M';
  file[10] = 54;  // where the pixels begin
  file[14] = 40;  // bytes of the header
  file[18] = 1;   // width
  file[22] = 1;   // height
  file[28] = 24;  // bits a pixel
  file[54] = blue;
  return file;
}

inline std::string base64_of(const std::string& bytes) {
  std::string text;
  append_base64(text, std::as_bytes(std::span(bytes)));
  return text;
}

// The same, as a request brings it.
inline ImageSource image_of_one_pixel(char blue = 0) {
  return {.kind = ImageSource::Kind::data, .text = base64_of(bmp_of_one_pixel(blue))};
}

}  // namespace uma::testing
