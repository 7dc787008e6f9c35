#include "image/image_header.h"

#include <string>
#include <vector>
#include <zlib.h>

#include <gtest/gtest.h>

namespace uma::image {
namespace {

std::string big32(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}
std::string little(std::uint32_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i, value >>= 8) text += static_cast<char>(value);
  return text;
}

std::string packed(const std::string& data) {
  std::string out(::compressBound(data.size()), '\0');
  uLongf size = out.size();
  EXPECT_EQ(::compress(reinterpret_cast<Bytef*>(out.data()), &size, reinterpret_cast<const Bytef*>(data.data()), data.size()),
            Z_OK);
  out.resize(size);
  return out;
}

std::string chunk(const std::string& type, const std::string& data) {
  return big32(static_cast<std::uint32_t>(data.size())) + type + data + "CRC.";
}

// Eight bits per channel, three channels.
std::string png(std::uint32_t width, std::uint32_t height, const std::string& rows) {
  return std::string("\x89PNG\r\n\x1a\n") + chunk("IHDR", big32(width) + big32(height) + std::string("\x08\x02\0\0\0", 5)) +
         chunk("IDAT", packed(rows)) + chunk("IEND", "");
}
std::string small_png() {
  return png(2, 2, std::string(14, '\0'));
}

std::string segment(int marker, const std::string& data) {
  const auto length = static_cast<std::uint32_t>(data.size() + 2);
  return std::string("\xFF") + static_cast<char>(marker) + static_cast<char>(length >> 8) + static_cast<char>(length) + data;
}
std::string frame(int width, int height, int marker = 0xC0) {
  return segment(marker, std::string("\x08") + static_cast<char>(height >> 8) + static_cast<char>(height) +
                             static_cast<char>(width >> 8) + static_cast<char>(width) + std::string("\x01\x01\x11\0", 4));
}
std::string scan() {
  return segment(0xDA, std::string("\x01\x01\0\0\x3f\0", 6)) + std::string("data\xFF\0more\xFF\xD0rest", 16);
}
std::string jpeg(const std::string& inner) {
  return "\xFF\xD8" + segment(0xE0, "JFIF") + inner + "\xFF\xD9";
}

std::string bmp(std::uint32_t width, std::uint32_t height, const std::string& rows) {
  return "BM" + little(0, 8) + little(54, 4) + little(40, 4) + little(width, 4) + little(height, 4) + little(1, 2) +
         little(24, 2) + little(0, 24) + rows;
}
std::string gif(std::uint32_t width, std::uint32_t height, const std::string& data = "data") {
  const std::string size = little(width, 2) + little(height, 2);
  return "GIF89a" + size + std::string("\x80\0\0", 3) + std::string(6, 'c') + std::string("!\xF9\x04gctl\0", 8) + "," +
         std::string(4, '\0') + size + std::string("\0\x08", 2) + static_cast<char>(data.size()) + data + std::string("\0;", 2);
}

std::string webp(const std::string& chunks) {
  return "RIFF" + little(static_cast<std::uint32_t>(4 + chunks.size()), 4) + "WEBP" + chunks;
}
std::string webp_part(const std::string& type, const std::string& data) {
  return type + little(static_cast<std::uint32_t>(data.size()), 4) + data + std::string(data.size() % 2, '\0');
}
std::string lossy_webp(std::uint32_t width, std::uint32_t height) {
  return webp_part("VP8 ", std::string("\0\0\0\x9d\x01\x2a", 6) + little(width, 2) + little(height, 2));
}
std::string lossless_webp(std::uint32_t width, std::uint32_t height) {
  return webp_part("VP8L", "/" + little((width - 1) | (height - 1) << 14, 4) + "data");
}
std::string webp_canvas(std::uint32_t width, std::uint32_t height) {
  return webp_part("VP8X", little(0, 4) + little(width - 1, 3) + little(height - 1, 3));
}

Expected<ImageHeader> check(const std::string& file) {
  return check_image(std::as_bytes(std::span(file)));
}

std::string problem(const std::string& file) {
  const auto header = check(file);
  if (header) return "";
  EXPECT_EQ(header.error().code, ErrorCode::proto_field);
  return header.error().message;
}

TEST(ImageHeader, KnowsKindAndSize) {
  const std::pair<std::string, ImageKind> files[] = {
      {small_png(), ImageKind::png},
      {jpeg(frame(2, 2) + scan()), ImageKind::jpeg},
      {jpeg(frame(2, 2, 0xC2) + scan() + scan()), ImageKind::jpeg},
      {bmp(2, 2, std::string(16, '\0')), ImageKind::bmp},
      {bmp(2, static_cast<std::uint32_t>(-2), std::string(16, '\0')), ImageKind::bmp},
      {webp(lossy_webp(2, 2)), ImageKind::webp},
      {webp(lossless_webp(2, 2)), ImageKind::webp},
      {webp(webp_canvas(2, 2) + webp_part("ANMF", "frame")), ImageKind::webp},
      {webp(webp_canvas(2, 2) + webp_part("ICCP", "odd") + lossy_webp(2, 2)), ImageKind::webp},
      {gif(2, 2), ImageKind::gif}};
  for (const auto& [file, kind] : files) {
    const auto header = check(file);
    ASSERT_TRUE(header) << static_cast<int>(kind) << ": " << header.error().message;
    EXPECT_EQ(header->kind, kind);
    EXPECT_EQ(header->width, 2);
    EXPECT_EQ(header->height, 2);
  }
}

TEST(ImageHeader, RefusesPicturesThatTheirDataCannotHold) {
  EXPECT_EQ(problem(gif(100, 100)), "");
  EXPECT_EQ(problem(gif(16'384, 3'906, std::string(200, 'x'))), problem(gif(16'384, 3'906)));
  for (const std::string& file :
       {gif(16'384, 3'906), png(4000, 4000, std::string(14, '\0')), jpeg(frame(4000, 4000) + scan())}) {
    EXPECT_EQ(problem(file), "the image cannot be read: the file is truncated");
  }
  EXPECT_EQ(problem(jpeg(frame(64, 64) + scan())), "");
  // 29 bytes with 64 million pixels.
  EXPECT_NE(problem(std::string("GIF89a\0\x40\x42\x0f\0\0\0,\0\0\0\0\1\0\1\0\0\2\2\x44\1\0;", 29)), "");
}

TEST(ImageHeader, ReadsTheBlocksOfAGif) {
  const std::string file = gif(2, 2);
  EXPECT_EQ(problem(file + "more"), "") << "bytes behind the end are ignored";
  std::string unknown = file;
  unknown[19] = 'x';
  EXPECT_EQ(problem(unknown), "the image cannot be read: the GIF file is damaged");
  EXPECT_EQ(problem(file.substr(0, 27) + ";"), "the image cannot be read: the GIF file has no picture");
}

TEST(ImageHeader, RefusesEveryBeginningOfAFile) {
  for (const std::string& file : {small_png(), jpeg(frame(2, 2) + scan()), bmp(2, 2, std::string(16, '\0')), gif(2, 2),
                                  webp(lossy_webp(2, 2)), webp(webp_canvas(2, 2) + lossless_webp(2, 2))}) {
    for (std::size_t size = 0; size < file.size(); ++size) EXPECT_NE(problem(file.substr(0, size)), "") << size;
  }
}

TEST(ImageHeader, RefusesOtherKinds) {
  for (const std::string file : {"", "hello", "RIFF....WAVEfmt ", "%PDF-1.7", "<svg/>", "ID3\x04", "\x7f\x45LF"}) {
    EXPECT_NE(problem(file).find("not a PNG, JPEG, WebP, GIF or BMP file"), std::string::npos) << file;
  }
}

TEST(ImageHeader, NamesFormatsThatPeopleSend) {
  const std::pair<std::string, std::string> files[] = {{std::string("\0\0\0\x20", 4) + "ftypavif....", "AVIF"},
                                                       {std::string("\0\0\0\x20", 4) + "ftypheic....", "HEIC"},
                                                       {std::string("II*\0....", 8), "TIFF"},
                                                       {"<svg xmlns=", "SVG"},
                                                       {"%PDF-1.7", "PDF"}};
  for (const auto& [file, name] : files) {
    EXPECT_EQ(problem(file), "the image cannot be read: it is a file of the format " + name +
                                 ", not a PNG, JPEG, WebP, GIF or BMP file: send it as one of these");
  }
}

TEST(ImageHeader, RefusesPicturesThatAreTooLarge) {
  EXPECT_NE(problem(png(20'000, 1, "")).find("20000 x 1 pixels"), std::string::npos);
  EXPECT_NE(problem(png(16'000, 16'000, "")).find("pixels"), std::string::npos);
  EXPECT_NE(problem(png(0xFFFFFFFF, 0xFFFFFFFF, "")).find("pixels"), std::string::npos);
  EXPECT_NE(problem(png(0, 5, "")).find("no pixels"), std::string::npos);
  EXPECT_NE(problem(jpeg(frame(65'535, 65'535) + scan())).find("pixels"), std::string::npos);
  EXPECT_NE(problem(bmp(1u << 30, 1, "")).find("pixels"), std::string::npos);
  EXPECT_NE(problem(gif(65'535, 65'535)).find("pixels"), std::string::npos);
  EXPECT_NE(problem(webp(lossy_webp(16'383, 16'383))).find("pixels"), std::string::npos);
  EXPECT_NE(problem(webp(lossless_webp(16'384, 16'384))).find("pixels"), std::string::npos);
  EXPECT_NE(problem(webp(webp_canvas(1 << 24, 1 << 24) + lossy_webp(2, 2))).find("pixels"), std::string::npos);
  EXPECT_NE(problem(webp(webp_canvas(2, 2) + lossy_webp(16'383, 16'383))).find("pixels"), std::string::npos);
  std::string frame_of_gif = gif(2, 2);
  frame_of_gif.replace(frame_of_gif.find(',') + 5, 4, "\xFF\xFF\xFF\xFF");
  EXPECT_NE(problem(frame_of_gif).find("pixels"), std::string::npos) << "larger than what is shown of it";
}

TEST(ImageHeader, RefusesDataThatUnpacksToMoreThanThePicture) {
  EXPECT_NE(problem(png(2, 2, std::string(1'000'000, '\0'))).find("larger than the picture"), std::string::npos);
  std::string scans;
  for (int i = 0; i < 40; ++i) scans += scan();
  EXPECT_NE(problem(jpeg(frame(8'000, 8'000, 0xC2) + scans)).find("too many scans"), std::string::npos);
}

TEST(ImageHeader, RefusesDamagedData) {
  std::string file = small_png();
  const std::size_t data = file.find("IDAT") + 4;
  file[data + 5] ^= 0x55;
  EXPECT_NE(problem(file).find("damaged"), std::string::npos);
}

TEST(ImageHeader, RefusesFilesThatAreTooLarge) {
  EXPECT_NE(problem(std::string(kImageBytesMax + 1, 'x')).find("the limit is"), std::string::npos);
}

}  // namespace
}  // namespace uma::image
