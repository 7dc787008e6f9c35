#include "image/png_writer.h"

#include <algorithm>
#include <csetjmp>
#include <cstddef>
#include <format>
#include <png.h>
#include <vector>

#include "base/check.h"

namespace uma::image {
namespace {

constexpr int kBits = 8;

struct Output {
  std::string bytes;
  std::string problem;

  [[nodiscard]] bool append(png_bytep data, std::size_t size) try {
    bytes.append(reinterpret_cast<const char*>(data), size);
    return true;
  } catch (...) {
    return false;
  }
};

// No exception passes through libpng.
void append(png_structp png, png_bytep data, std::size_t size) {
  if (!static_cast<Output*>(png_get_io_ptr(png))->append(data, size)) png_error(png, "out of memory");
}

void fail_with(png_structp png, png_const_charp problem) {
  static_cast<Output*>(png_get_error_ptr(png))->problem = problem;
  png_longjmp(png, 1);
}

void ignore(png_structp /*png*/, png_const_charp /*warning*/) {}

// A row of the picture, enlarged. Requires: `wide` has the capacity.
void widen(std::span<const std::uint8_t> row, std::size_t scale, std::vector<std::uint8_t>& wide) {
  wide.clear();
  for (std::size_t i = 0; i < row.size(); i += 3) {
    for (std::size_t copy = 0; copy < scale; ++copy) wide.insert(wide.end(), {row[i], row[i + 1], row[i + 2]});
  }
}

// libpng leaves by longjmp() after an error, which runs no destructors: everything that has one is the caller's.
bool write(png_structp png, png_infop info, const PngPicture& picture, png_textp text, std::vector<std::uint8_t>& wide) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  const auto scale = static_cast<png_uint_32>(picture.scale);
  if (scale > 1) {  // Runs of equal pixels need no effort.
    png_set_compression_level(png, 1);
    png_set_filter(png, PNG_FILTER_TYPE_BASE, PNG_FILTER_NONE);
  }
  png_set_IHDR(png, info, static_cast<png_uint_32>(picture.width) * scale, static_cast<png_uint_32>(picture.height) * scale,
               kBits, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (text != nullptr) png_set_text(png, info, text, 1);
  png_write_info(png, info);
  const auto row_bytes = static_cast<std::size_t>(picture.width) * 3;
  for (std::size_t y = 0; y < static_cast<std::size_t>(picture.height); ++y) {
    widen(picture.levels.subspan(y * row_bytes, row_bytes), scale, wide);
    for (png_uint_32 copy = 0; copy < scale; ++copy) png_write_row(png, wide.data());
  }
  png_write_end(png, nullptr);
  return true;
}

}  // namespace

Expected<std::string> write_png(const PngPicture& picture, std::string_view parameters) {
  UMA_CHECK(picture.width > 0 && picture.height > 0 && picture.scale > 0);
  UMA_CHECK(picture.levels.size() == static_cast<std::size_t>(picture.width) * static_cast<std::size_t>(picture.height) * 3);
  Output output;
  std::vector<std::uint8_t> wide;
  wide.reserve(static_cast<std::size_t>(picture.width) * 3 * static_cast<std::size_t>(picture.scale));
  std::string keyword = "parameters";
  std::string value(parameters);
  const bool is_ascii = std::ranges::all_of(value, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  png_text text{};
  text.compression = is_ascii ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE;
  text.key = keyword.data();
  text.text = value.data();
  text.text_length = is_ascii ? value.size() : 0;
  text.itxt_length = is_ascii ? 0 : value.size();
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &output, fail_with, ignore);
  png_infop info = png == nullptr ? nullptr : png_create_info_struct(png);
  if (info != nullptr) png_set_write_fn(png, &output, append, nullptr);
  const bool is_whole = info != nullptr && write(png, info, picture, value.empty() ? nullptr : &text, wide);
  png_destroy_write_struct(&png, &info);
  if (is_whole) return std::move(output.bytes);
  return fail(ErrorCode::runtime_decode, std::format("the picture could not be written as PNG: {}",
                                                     output.problem.empty() ? "out of memory" : output.problem));
}

}  // namespace uma::image
