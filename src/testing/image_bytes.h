// The smallest possible images, for tests.
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
  file[10] = 54;  // Position of the pixels.
  file[14] = 40;  // Bytes of the header.
  file[18] = 1;   // Width.
  file[22] = 1;   // Height.
  file[28] = 24;  // Bits per pixel.
  file[54] = blue;
  return file;
}

// The same image as the source in a request.
inline ImageSource image_of_one_pixel(char blue = 0) {
  return {.kind = ImageSource::Kind::data, .text = base64_of(bmp_of_one_pixel(blue))};
}

}  // namespace uma::testing
