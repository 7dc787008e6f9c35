#include <csetjmp>
#include <cstring>
#include <png.h>
#include <string>
#include <vector>

#include "image/image_header.h"
#include "image/picture_formats.h"

namespace uma::image {
namespace {

constexpr std::size_t kRgbaBytes = 4;

// Everything with a destructor, because libpng leaves by longjmp() after an error.
struct PngReading {
  File left;
  std::string problem{};
  llm::Picture picture{};
  std::vector<std::uint8_t> rgba{};  // A row; of an interlaced picture all rows.
};

void read_png_bytes(png_structp png, png_bytep data, std::size_t size) {
  auto& reading = *static_cast<PngReading*>(png_get_io_ptr(png));
  if (size > reading.left.size()) png_error(png, "it ends too early");
  std::memcpy(data, reading.left.data(), size);
  reading.left = reading.left.subspan(size);
}

void end_png_reading(png_structp png, png_const_charp problem) {
  static_cast<PngReading*>(png_get_error_ptr(png))->problem = problem;
  png_longjmp(png, 1);
}

void ignore_png_warning(png_structp /*png*/, png_const_charp /*warning*/) {}

// Reads the picture as RGBA with 8 bits.
bool read_png(png_structp png, png_infop info, PngReading& reading) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_user_limits(png, kImageSideMax, kImageSideMax);
  png_read_info(png, info);
  png_set_expand(png);
  png_set_scale_16(png);
  png_set_gray_to_rgb(png);
  constexpr png_uint_32 kOpaque = 255;
  png_set_add_alpha(png, kOpaque, PNG_FILLER_AFTER);
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  const std::size_t width = png_get_image_width(png, info);
  const std::size_t height = png_get_image_height(png, info);
  const std::size_t row_bytes = width * kRgbaBytes;
  if (png_get_rowbytes(png, info) != row_bytes) png_error(png, "it has an unknown kind of pixels");
  reading.picture = white_picture(static_cast<std::int64_t>(width), static_cast<std::int64_t>(height));
  const bool is_interlaced = passes > 1;
  reading.rgba.resize(is_interlaced ? row_bytes * height : row_bytes);
  for (int pass = 0; pass < passes; ++pass) {
    for (std::size_t y = 0; y < height; ++y) {
      const std::span<std::uint8_t> row = std::span(reading.rgba).subspan(is_interlaced ? y * row_bytes : 0, row_bytes);
      png_read_row(png, row.data(), nullptr);
      if (pass + 1 == passes) lay_over_white(row, row_of(reading.picture, static_cast<std::int64_t>(y)));
    }
  }
  return true;
}

// The orientation of the eXIf chunk, which may stand behind the pixels.
int png_orientation(File file) {
  constexpr std::size_t kSignature = 8;
  constexpr std::size_t kChunk = 12;  // Length, type and checksum.
  for (std::size_t at = kSignature; file.size() - at >= kChunk;) {
    const std::size_t length = big32(file, at);
    if (length > file.size() - at - kChunk) break;
    if (begins_with(file.subspan(at + 4), "eXIf")) return orientation_of(file.subspan(at + 8, length));
    at += kChunk + length;
  }
  return kUpright;
}

}  // namespace

Expected<Decoded> decode_png(File file) {
  PngReading reading{.left = file};
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reading, end_png_reading, ignore_png_warning);
  png_infop info = png == nullptr ? nullptr : png_create_info_struct(png);
  if (info != nullptr) png_set_read_fn(png, &reading, read_png_bytes);
  const bool is_whole = info != nullptr && read_png(png, info, reading);
  png_destroy_read_struct(&png, &info, nullptr);
  if (!is_whole) return undecodable("PNG", reading.problem.empty() ? "out of memory" : reading.problem);
  return Decoded{.picture = std::move(reading.picture), .orientation = png_orientation(file)};
}

}  // namespace uma::image
