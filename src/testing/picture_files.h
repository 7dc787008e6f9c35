// Files of pictures in every format that is read, written by the libraries of the formats, for tests.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <gif_lib.h>
#include <jpeglib.h>
#include <png.h>
#include <span>
#include <string>
#include <string_view>
#include <vector>
#include <webp/encode.h>
#include <zlib.h>

namespace uma::testing {

inline std::string bytes_of(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}
inline std::string little_end(std::uint32_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i, value >>= 8) text += static_cast<char>(value);
  return text;
}
inline std::string big_end(std::uint32_t value, int bytes) {
  std::string text = little_end(value, bytes);
  return {text.rbegin(), text.rend()};
}

// EXIF data that has nothing but an orientation.
inline std::string exif_with(int orientation, bool is_big = false) {
  const auto number = [&](std::uint32_t value, int bytes) { return is_big ? big_end(value, bytes) : little_end(value, bytes); };
  return (is_big ? "MM" : "II") + number(42, 2) + number(8, 4) + number(1, 2) + number(274, 2) + number(3, 2) + number(1, 4) +
         number(static_cast<std::uint32_t>(orientation), 2) + number(0, 2) + number(0, 4);
}

struct PngFileOptions {
  int depth = 8;
  int colour_type = PNG_COLOR_TYPE_RGB;
  std::vector<png_color> palette{};
  std::vector<std::uint8_t> palette_alpha{};
  std::vector<std::uint16_t> transparent{};  // The gray level, or red, green and blue, that is transparent.
  bool is_interlaced = false;
};

// `rows` has the packed pixels of all rows, each of which begins with a whole byte.
inline std::string png_file(std::uint32_t width, std::uint32_t height, const std::vector<std::uint8_t>& rows,
                            const PngFileOptions& options = {}) {
  std::string file;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &file,
      [](png_structp writer, png_bytep data, std::size_t size) {
        static_cast<std::string*>(png_get_io_ptr(writer))->append(reinterpret_cast<const char*>(data), size);
      },
      nullptr);
  png_set_IHDR(png, info, width, height, options.depth, options.colour_type,
               options.is_interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  if (!options.palette.empty()) png_set_PLTE(png, info, options.palette.data(), static_cast<int>(options.palette.size()));
  if (!options.palette_alpha.empty()) {
    png_set_tRNS(png, info, options.palette_alpha.data(), static_cast<int>(options.palette_alpha.size()), nullptr);
  }
  if (!options.transparent.empty()) {
    png_color_16 colour{};
    colour.gray = colour.red = options.transparent.front();
    colour.green = options.transparent.size() > 1 ? options.transparent[1] : 0;
    colour.blue = options.transparent.size() > 2 ? options.transparent[2] : 0;
    png_set_tRNS(png, info, nullptr, 0, &colour);
  }
  png_write_info(png, info);
  const std::size_t row_bytes = rows.size() / height;
  const int passes = options.is_interlaced ? png_set_interlace_handling(png) : 1;
  for (int pass = 0; pass < passes; ++pass) {
    for (std::size_t y = 0; y < height; ++y) png_write_row(png, rows.data() + y * row_bytes);
  }
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  return file;
}

// The file with a chunk before its pixels.
inline std::string with_png_chunk(std::string file, std::string_view type, const std::string& data) {
  const std::string body = std::string(type) + data;
  const auto checksum = ::crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return file.insert(file.find("IDAT") - 4, big_end(static_cast<std::uint32_t>(data.size()), 4) + body +
                                                big_end(static_cast<std::uint32_t>(checksum), 4));
}

struct JpegFileOptions {
  J_COLOR_SPACE space = JCS_RGB;  // Colour space of the given levels.
  bool is_progressive = false;
  std::string exif{};
};

inline std::string jpeg_file(std::uint32_t width, std::uint32_t height, const std::vector<std::uint8_t>& levels,
                             const JpegFileOptions& options = {}) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_width = width;
  info.image_height = height;
  const std::size_t channels = levels.size() / width / height;
  info.input_components = static_cast<int>(channels);
  info.in_color_space = options.space;
  jpeg_set_defaults(&info);
  constexpr int kBest = 100;
  jpeg_set_quality(&info, kBest, TRUE);
  for (int i = 0; i < info.num_components; ++i) info.comp_info[i].h_samp_factor = info.comp_info[i].v_samp_factor = 1;
  if (options.is_progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  if (!options.exif.empty()) {
    const std::string data = std::string("Exif\0\0", 6) + options.exif;
    jpeg_write_marker(&info, JPEG_APP0 + 1, reinterpret_cast<const JOCTET*>(data.data()), static_cast<unsigned>(data.size()));
  }
  while (info.next_scanline < height) {
    JSAMPROW row = const_cast<JSAMPROW>(levels.data() + info.next_scanline * width * channels);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  std::string file(reinterpret_cast<const char*>(bytes), size);
  jpeg_destroy_compress(&info);
  std::free(bytes);
  return file;
}

inline std::string webp_file(int width, int height, const std::vector<std::uint8_t>& rgba, bool is_lossless = true) {
  constexpr float kQuality = 90;
  // The colours of transparent pixels are kept.
  WebPConfig config;
  WebPPicture picture;
  WebPMemoryWriter writer;
  WebPMemoryWriterInit(&writer);
  bool is_good = WebPConfigPreset(&config, WEBP_PRESET_DEFAULT, kQuality) != 0 && WebPPictureInit(&picture) != 0;
  config.lossless = is_lossless ? 1 : 0;
  config.exact = 1;
  picture.use_argb = 1;
  picture.width = width;
  picture.height = height;
  picture.writer = WebPMemoryWrite;
  picture.custom_ptr = &writer;
  is_good = is_good && WebPPictureImportRGBA(&picture, rgba.data(), 4 * width) != 0 && WebPEncode(&config, &picture) != 0;
  WebPPictureFree(&picture);
  std::string file = is_good ? std::string(reinterpret_cast<const char*>(writer.mem), writer.size) : "";
  WebPMemoryWriterClear(&writer);
  return file;
}

inline std::string webp_chunk(std::string_view type, const std::string& data) {
  return std::string(type) + little_end(static_cast<std::uint32_t>(data.size()), 4) + data + std::string(data.size() % 2, '\0');
}
// A file of the extended format.
inline std::string extended_webp(int width, int height, int flags, const std::string& chunks) {
  const std::string sides =
      little_end(static_cast<std::uint32_t>(width - 1), 3) + little_end(static_cast<std::uint32_t>(height - 1), 3);
  const std::string body = "WEBP" + webp_chunk("VP8X", little_end(static_cast<std::uint32_t>(flags), 4) + sides) + chunks;
  return "RIFF" + little_end(static_cast<std::uint32_t>(body.size()), 4) + body;
}
// The chunks of a file of the simple format.
inline std::string webp_chunks(const std::string& file) {
  return file.substr(12);
}
// A frame of an animation, of a file of its own.
inline std::string webp_frame(int x, int y, int width, int height, const std::string& file) {
  std::string head;
  for (const int value : {x / 2, y / 2, width - 1, height - 1, 100}) head += little_end(static_cast<std::uint32_t>(value), 3);
  return webp_chunk("ANMF", head + '\0' + webp_chunks(file));
}

struct GifFrame {
  int left = 0;
  int top = 0;
  int width = 0;
  int height = 0;
  std::vector<std::uint8_t> codes{};
  int transparent = NO_TRANSPARENT_COLOR;
  bool is_interlaced = false;
};

// A file whose colours are those of `palette`.
inline std::string gif_file(int width, int height, const std::vector<GifColorType>& palette,
                            const std::vector<GifFrame>& frames) {
  std::string file;
  int problem = 0;
  GifFileType* gif = EGifOpen(
      &file,
      [](GifFileType* writer, const GifByteType* bytes, int size) {
        static_cast<std::string*>(writer->UserData)
            ->append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
        return size;
      },
      &problem);
  ColorMapObject* colours = GifMakeMapObject(static_cast<int>(palette.size()), palette.data());
  EGifSetGifVersion(gif, true);
  EGifPutScreenDesc(gif, width, height, 8, 0, colours);
  for (const GifFrame& frame : frames) {
    GraphicsControlBlock control{
        .DisposalMode = 0, .UserInputFlag = false, .DelayTime = 10, .TransparentColor = frame.transparent};
    std::array<GifByteType, 4> bytes{};
    EGifGCBToExtension(&control, bytes.data());
    EGifPutExtension(gif, GRAPHICS_EXT_FUNC_CODE, bytes.size(), bytes.data());
    EGifPutImageDesc(gif, frame.left, frame.top, frame.width, frame.height, frame.is_interlaced, nullptr);
    std::vector<std::uint8_t> codes = frame.codes;
    constexpr std::array<std::array<int, 2>, 4> kPasses = {{{0, 8}, {4, 8}, {2, 4}, {1, 2}}};
    for (const auto& [first, step] :
         frame.is_interlaced ? std::span<const std::array<int, 2>>(kPasses) : std::span<const std::array<int, 2>>()) {
      for (int y = first; y < frame.height; y += step) EGifPutLine(gif, codes.data() + y * frame.width, frame.width);
    }
    for (int y = 0; !frame.is_interlaced && y < frame.height; ++y)
      EGifPutLine(gif, codes.data() + y * frame.width, frame.width);
  }
  EGifCloseFile(gif, &problem);
  GifFreeMapObject(colours);
  return file;
}

struct BmpFileOptions {
  std::uint32_t depth = 24;
  std::vector<std::uint32_t> palette{};  // 0xRRGGBB.
  std::vector<std::uint32_t> masks{};    // Red, green, blue, and perhaps alpha.
};

// `rows` are as in the file, from the bottom if `height` is positive.
inline std::string bmp_file(int width, int height, const std::vector<std::uint8_t>& rows, const BmpFileOptions& options = {}) {
  const bool has_alpha = options.masks.size() == 4;
  const std::uint32_t header = has_alpha ? 56 : 40;
  std::string tables;
  for (const std::uint32_t mask : options.masks) tables += little_end(mask, 4);
  for (const std::uint32_t colour : options.palette) tables += little_end(colour, 4);
  const auto begin = static_cast<std::uint32_t>(14 + 40 + tables.size());
  return "BM" + little_end(static_cast<std::uint32_t>(begin + rows.size()), 4) + little_end(0, 4) + little_end(begin, 4) +
         little_end(header, 4) + little_end(static_cast<std::uint32_t>(width), 4) +
         little_end(static_cast<std::uint32_t>(height), 4) + little_end(1, 2) + little_end(options.depth, 2) +
         little_end(options.masks.empty() ? 0 : 3, 4) + little_end(0, 12) +
         little_end(static_cast<std::uint32_t>(options.palette.size()), 4) + little_end(0, 4) + tables + bytes_of(rows);
}

}  // namespace uma::testing
