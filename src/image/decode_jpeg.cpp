#include <array>
#include <csetjmp>
#include <cstdio>
#include <jpeglib.h>
#include <string>
#include <vector>

#include "image/picture_formats.h"

namespace uma::image {
namespace {

// The first member is the library's, which knows no other.
struct JpegProblem {
  jpeg_error_mgr library{};
  std::jmp_buf leave{};
  std::array<char, JMSG_LENGTH_MAX> text{};
};

// Everything with a destructor, because the library leaves by longjmp() after an error.
struct JpegReading {
  JpegProblem problem{};
  Decoded decoded{};
  std::vector<std::uint8_t> cmyk{};  // A row.
};

void end_jpeg_reading(j_common_ptr info) {
  auto& problem = *reinterpret_cast<JpegProblem*>(info->err);
  problem.library.format_message(info, problem.text.data());
  std::longjmp(problem.leave, 1);
}

void ignore_jpeg_message(j_common_ptr /*info*/) {}

// Adobe's programs store the complements, and other programs do as they do.
void write_cmyk(std::span<const std::uint8_t> cmyk, bool is_inverted, std::span<std::uint8_t> rgb) {
  constexpr unsigned kMost = 255;
  for (std::size_t from = 0, to = 0; from < cmyk.size(); from += 4, to += 3) {
    const unsigned black = is_inverted ? cmyk[from + 3] : kMost - cmyk[from + 3];
    for (std::size_t colour = 0; colour < 3; ++colour) {
      const unsigned level = is_inverted ? cmyk[from + colour] : kMost - cmyk[from + colour];
      rgb[to + colour] = static_cast<std::uint8_t>((level * black + kMost / 2) / kMost);
    }
  }
}

int jpeg_orientation(jpeg_saved_marker_ptr marker) {
  for (; marker != nullptr; marker = marker->next) {
    const File data = std::as_bytes(std::span(marker->data, marker->data_length));
    if (begins_with(data, "Exif")) return orientation_of(data);
  }
  return kUpright;
}

bool read_jpeg(jpeg_decompress_struct& info, File file, JpegReading& reading) {
  if (setjmp(reading.problem.leave) != 0) return false;
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.data()), static_cast<unsigned long>(file.size()));
  constexpr unsigned kMarkerBytesMax = 65'535;
  jpeg_save_markers(&info, JPEG_APP0 + 1, kMarkerBytesMax);
  jpeg_read_header(&info, TRUE);
  const bool is_cmyk = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(&info);
  reading.decoded.orientation = jpeg_orientation(info.marker_list);
  llm::Picture& picture = reading.decoded.picture;
  picture = white_picture(info.output_width, info.output_height);
  if (is_cmyk) reading.cmyk.resize(static_cast<std::size_t>(info.output_width) * 4);
  while (info.output_scanline < info.output_height) {
    const std::span<std::uint8_t> row = row_of(picture, info.output_scanline);
    JSAMPROW target = is_cmyk ? reading.cmyk.data() : row.data();
    jpeg_read_scanlines(&info, &target, 1);
    if (is_cmyk) write_cmyk(reading.cmyk, info.saw_Adobe_marker != FALSE, row);
  }
  return true;
}

}  // namespace

Expected<Decoded> decode_jpeg(File file) {
  JpegReading reading;
  jpeg_decompress_struct info{};
  info.err = jpeg_std_error(&reading.problem.library);
  reading.problem.library.error_exit = end_jpeg_reading;
  reading.problem.library.output_message = ignore_jpeg_message;
  const bool is_whole = read_jpeg(info, file, reading);
  jpeg_destroy_decompress(&info);
  if (!is_whole) return undecodable("JPEG", reading.problem.text.data());
  return std::move(reading.decoded);
}

}  // namespace uma::image
