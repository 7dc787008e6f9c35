#include "image/image_header.h"

#include <algorithm>
#include <array>
#include <format>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <zlib.h>

#include "image/file_bytes.h"

namespace uma::image {
namespace {

std::unexpected<Error> refuse(std::string_view why) {
  return fail(ErrorCode::proto_field, std::format("the image cannot be read: {}", why));
}

std::unexpected<Error> refuse_cut_off() {
  return refuse("the file is truncated");
}

Expected<ImageHeader> check_size(ImageKind kind, std::int64_t width, std::int64_t height) {
  if (width < 1 || height < 1) return refuse("the picture has no pixels");
  if (width > kImageSideMax || height > kImageSideMax || width * height > kImagePixelsMax) {
    return refuse(std::format("the picture has {} x {} pixels; the limit is {} on a side and {} in total", width, height,
                              kImageSideMax, kImagePixelsMax));
  }
  return ImageHeader{.kind = kind, .width = width, .height = height};
}

// --- PNG (ISO 15948): a signature, then chunks: length, type, data, CRC

constexpr std::size_t kPngSignature = 8;
constexpr std::size_t kPngChunk = 12;  // Length, type and checksum.

// Decompresses the IDAT chunks and counts the bytes without storing them. A decoder would store all of it, however small the
// picture is.
class PngData {
 public:
  PngData() { is_open_ = ::inflateInit(&stream_) == Z_OK; }
  ~PngData() {
    if (is_open_) ::inflateEnd(&stream_);
  }
  PngData(const PngData&) = delete;

  // False: the data is damaged, or larger than `bytes_max`.
  bool add(File data, std::uint64_t bytes_max) {
    if (!is_open_) return false;
    stream_.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(data.data()));
    stream_.avail_in = static_cast<uInt>(data.size());
    while (stream_.avail_in > 0 && !is_whole_) {
      std::array<Bytef, 32'768> unpacked;
      stream_.next_out = unpacked.data();
      stream_.avail_out = unpacked.size();
      const int status = ::inflate(&stream_, Z_NO_FLUSH);
      if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) return false;
      const std::size_t count = unpacked.size() - stream_.avail_out;
      bytes_ += count;
      if (bytes_ > bytes_max) return false;
      is_whole_ = status == Z_STREAM_END;
      if (count == 0 && status == Z_BUF_ERROR) return true;  // More input is needed.
    }
    return true;
  }
  [[nodiscard]] bool is_whole() const { return is_whole_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  z_stream stream_{};
  bool is_open_ = false;
  bool is_whole_ = false;
  std::uint64_t bytes_ = 0;
};

std::uint64_t png_channels(std::uint32_t color_type) {
  switch (color_type) {
    case 0:
    case 3:
      return 1;
    case 4:
      return 2;
    case 2:
      return 3;
    case 6:
      return 4;
    default:
      return 0;
  }
}

Expected<ImageHeader> check_png(File file) {
  constexpr std::size_t kHeaderData = 13;
  if (file.size() < kPngSignature + kPngChunk + kHeaderData) return refuse_cut_off();
  const File first = file.subspan(kPngSignature);
  if (big32(first, 0) != kHeaderData || !begins_with(first.subspan(4), "IHDR"))
    return refuse("the PNG file does not begin with a valid IHDR chunk");
  const auto header = check_size(ImageKind::png, big32(first, 8), big32(first, 12));
  if (!header) return header;
  const std::uint32_t depth = byte_at(first, 16);
  const std::uint64_t channels = png_channels(byte_at(first, 17));
  if (channels == 0 || depth == 0 || depth > 16) return refuse("the PNG header is invalid");
  const auto rows = static_cast<std::uint64_t>(header->height);
  const std::uint64_t row_bytes = (static_cast<std::uint64_t>(header->width) * channels * depth + 7) / 8 + 1;
  // An interlaced picture consists of seven smaller pictures with rounded-up rows.
  const std::uint64_t unpacked_max = 2 * rows * row_bytes + 65'536;
  const std::uint64_t unpacked_min = rows * (row_bytes - 1);
  PngData data;
  std::size_t at = kPngSignature;
  while (file.size() - at >= kPngChunk) {
    const std::uint32_t length = big32(file, at);
    if (length > file.size() - at - kPngChunk) return refuse_cut_off();
    const File chunk = file.subspan(at + 4);
    if (begins_with(chunk, "IEND")) return data.is_whole() && data.bytes() >= unpacked_min ? header : refuse_cut_off();
    if (begins_with(chunk, "IDAT") && !data.add(chunk.subspan(4, length), unpacked_max)) {
      return refuse("the PNG data is damaged, or larger than the picture");
    }
    at += kPngChunk + length;
  }
  return refuse_cut_off();
}

// --- JPEG (ISO 10918-1): markers FF xx, most with a length and data behind them

Expected<ImageHeader> check_jpeg(File file) {
  // Limit of pixels times scans, because each scan is work for all pixels.
  constexpr std::int64_t kScanPixelsMax = std::int64_t{1} << 30;
  constexpr std::int64_t kPixelsPerByte = 512;  // A block of 8 x 8 takes at least one bit.
  std::optional<ImageHeader> header;
  std::int64_t scans = 0;
  std::int64_t data_bytes = 0;  // Data of all scans.
  std::size_t at = 2;
  while (at + 4 <= file.size()) {
    if (byte_at(file, at) != 0xFF) return refuse("the JPEG file is damaged");
    const std::uint32_t marker = byte_at(file, at + 1);
    if (marker == 0xFF) {  // A fill byte.
      ++at;
      continue;
    }
    const std::uint32_t length = big16(file, at + 2);
    if (length < 2 || length > file.size() - at - 2) return refuse_cut_off();
    const bool is_frame = marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
    if (is_frame) {
      if (header || length < 8) return refuse("the JPEG file is damaged");
      if (marker > 0xC2) return refuse("lossless and arithmetic JPEG files are not supported");
      const auto size = check_size(ImageKind::jpeg, big16(file, at + 7), big16(file, at + 5));
      if (!size) return size;
      header = *size;
    }
    at += 2 + length;
    if (marker != 0xDA) continue;
    if (!header) return refuse("the JPEG file is damaged");
    if (++scans * header->width * header->height > kScanPixelsMax) return refuse("the JPEG file has too many scans");
    // The header of a scan is followed by its data, in which FF is followed by 0 or a restart marker.
    const std::size_t data_begin = at;
    while (at + 2 <= file.size()) {
      const std::uint32_t next = byte_at(file, at + 1);
      if (byte_at(file, at) == 0xFF && next != 0 && next != 0xFF && (next < 0xD0 || next > 0xD7)) break;
      ++at;
    }
    data_bytes += static_cast<std::int64_t>(at - data_begin);
    if (at + 2 > file.size() || byte_at(file, at + 1) != 0xD9) continue;
    if (header->width * header->height > data_bytes * kPixelsPerByte) return refuse_cut_off();
    return *header;
  }
  return refuse_cut_off();
}

// --- BMP: a file header of 14 bytes, then one of 40 or more

Expected<ImageHeader> check_bmp(File file) {
  if (file.size() < 54) return refuse_cut_off();
  if (little32(file, 14) < 40) return refuse("BMP files with a header below 40 bytes are not supported");
  const auto width = static_cast<std::int32_t>(little32(file, 18));
  const auto height = static_cast<std::int32_t>(little32(file, 22));
  if (height == std::numeric_limits<std::int32_t>::min()) return refuse("the picture has no pixels");
  const auto header = check_size(ImageKind::bmp, width, height < 0 ? -height : height);
  if (!header) return header;
  const std::uint32_t depth = little16(file, 28);
  if (depth != 1 && depth != 4 && depth != 8 && depth != 16 && depth != 24 && depth != 32) {
    return refuse("the BMP header is invalid");
  }
  const std::uint32_t compression = little32(file, 30);
  if (compression != 0 && compression != 3) return refuse("compressed BMP files are not supported");
  const std::uint64_t row_bytes = (static_cast<std::uint64_t>(header->width) * depth + 31) / 32 * 4;
  const std::uint64_t data = little32(file, 10);
  if (data < 54 || data + row_bytes * static_cast<std::uint64_t>(header->height) > file.size()) return refuse_cut_off();
  return header;
}

// --- GIF (89a): a header, then blocks; of an animation only the first picture is read

// The bytes in the sub-blocks at `at`, which is moved behind them; nothing if their end is missing.
std::optional<std::size_t> skip_sub_blocks(File file, std::size_t& at) {
  std::size_t bytes = 0;
  while (at < file.size()) {
    const std::size_t length = byte_at(file, at++);
    if (length == 0) return bytes;
    bytes += length;
    at += length;
  }
  return std::nullopt;
}

std::size_t gif_colors_bytes(std::uint32_t flags) {
  return (flags & 0x80) != 0 ? std::size_t{3} << ((flags & 7) + 1) : 0;
}

Expected<ImageHeader> check_gif(File file) {
  constexpr std::size_t kHeader = 13;
  constexpr std::size_t kPicture = 10;
  constexpr std::size_t kPixelsPerByte = 2731;  // A code of 12 bits represents at most 4,096 pixels.
  if (file.size() < kHeader) return refuse_cut_off();
  const auto header = check_size(ImageKind::gif, little16(file, 6), little16(file, 8));
  if (!header) return header;
  bool has_picture = false;
  for (std::size_t at = kHeader + gif_colors_bytes(byte_at(file, 10)); at < file.size();) {
    const std::uint32_t kind = byte_at(file, at);
    if (kind == 0x3B) return has_picture ? header : refuse("the GIF file has no picture");
    if (kind == 0x21) {
      at += 2;
    } else if (kind == 0x2C && file.size() - at > kPicture) {
      // A picture may be larger than what is shown of it, and all of it is decoded.
      if (const auto size = check_size(ImageKind::gif, little16(file, at + 5), little16(file, at + 7)); !size) return size;
      at += kPicture + gif_colors_bytes(byte_at(file, at + 9)) + 1;
    } else {
      return kind == 0x2C ? refuse_cut_off() : refuse("the GIF file is damaged");
    }
    const auto bytes = skip_sub_blocks(file, at);
    if (!bytes) return refuse_cut_off();
    if (kind != 0x2C || has_picture) continue;
    has_picture = true;
    if (static_cast<std::size_t>(header->width * header->height) > *bytes * kPixelsPerByte) return refuse_cut_off();
  }
  return refuse_cut_off();
}

// --- WebP (RFC 9649): RIFF, then chunks: type, length, data, and a byte more behind an odd length

// The size of the picture in a chunk of this type; nothing if it has none.
Expected<ImageHeader> webp_size(std::string_view type, File data) {
  constexpr std::uint32_t kSideBits = 0x3FFF;
  if (type == "VP8X") {
    if (data.size() < 10) return refuse_cut_off();
    const auto side = [&](std::size_t at) { return std::int64_t{little16(data, at) | byte_at(data, at + 2) << 16} + 1; };
    return check_size(ImageKind::webp, side(4), side(7));
  }
  if (type == "VP8L") {
    if (data.size() < 5) return refuse_cut_off();
    const std::uint32_t sides = little32(data, 1);
    return check_size(ImageKind::webp, (sides & kSideBits) + 1, (sides >> 14 & kSideBits) + 1);
  }
  if (data.size() < 10) return refuse_cut_off();
  return check_size(ImageKind::webp, little16(data, 6) & kSideBits, little16(data, 8) & kSideBits);
}

Expected<ImageHeader> check_webp(File file) {
  constexpr std::size_t kRiff = 12;
  constexpr std::size_t kChunk = 8;  // Type and length.
  if (file.size() < kRiff + kChunk) return refuse_cut_off();
  const std::size_t end = kChunk + little32(file, 4);
  if (end > file.size()) return refuse_cut_off();
  std::optional<ImageHeader> header;
  for (std::size_t at = kRiff; at + kChunk <= end;) {
    const std::size_t length = little32(file, at + 4);
    if (length > end - at - kChunk) return refuse_cut_off();
    const File data = file.subspan(at + kChunk, length);
    const std::string type(reinterpret_cast<const char*>(file.data() + at), 4);
    const bool is_picture = type == "VP8 " || type == "VP8L";
    if (is_picture || type == "VP8X") {
      const auto size = webp_size(type, data);
      if (!size) return size;
      if (!header) header = *size;
    }
    // The first frame of an animation follows, whose size the decoder checks.
    if (is_picture || type == "ANMF") return header ? Expected<ImageHeader>(*header) : refuse("the WebP file is damaged");
    at += kChunk + length + length % 2;
  }
  return refuse("the WebP file has no picture");
}

// --- Other formats

// The name of a format that people send and that is not read; empty: another one.
std::string_view name_of_other(File file) {
  struct Magic {
    std::size_t at;
    std::string_view bytes;
    std::string_view name;
  };
  constexpr std::array<Magic, 20> kOthers = {{{4, "ftypavif", "AVIF"},
                                              {4, "ftypavis", "AVIF"},
                                              {4, "ftypheic", "HEIC"},
                                              {4, "ftypheix", "HEIC"},
                                              {4, "ftyphevc", "HEIC"},
                                              {4, "ftypheim", "HEIC"},
                                              {4, "ftypmif1", "HEIF"},
                                              {4, "ftypmsf1", "HEIF"},
                                              {4, "ftyp", "video"},
                                              {0, {"II*\0", 4}, "TIFF"},
                                              {0, {"MM\0*", 4}, "TIFF"},
                                              {0, "\xFF\x0A", "JPEG XL"},
                                              {0, {"\0\0\0\x0CJXL ", 8}, "JPEG XL"},
                                              {0, {"\0\0\0\x0CjP  ", 8}, "JPEG 2000"},
                                              {0, {"\0\0\1\0", 4}, "ICO"},
                                              {0, "%PDF", "PDF"},
                                              {0, "<svg", "SVG"},
                                              {0, "<?xml", "SVG or XML"},
                                              {0, "\x1A\x45\xDF\xA3", "video"},
                                              {0, "8BPS", "Photoshop"}}};
  for (const auto& [at, bytes, name] : kOthers) {
    if (at <= file.size() && begins_with(file.subspan(at), bytes)) return name;
  }
  return "";
}

}  // namespace

Expected<ImageKind> image_kind(File file) {
  if (begins_with(file, "\x89PNG\r\n\x1a\n")) return ImageKind::png;
  if (begins_with(file, "\xFF\xD8\xFF")) return ImageKind::jpeg;
  if (begins_with(file, "RIFF") && file.size() >= 12 && begins_with(file.subspan(8), "WEBP")) return ImageKind::webp;
  if (begins_with(file, "GIF87a") || begins_with(file, "GIF89a")) return ImageKind::gif;
  if (begins_with(file, "BM")) return ImageKind::bmp;
  const std::string_view name = name_of_other(file);
  return refuse(std::format("it is {}not a PNG, JPEG, WebP, GIF or BMP file{}",
                            name.empty() ? "" : std::format("a file of the format {}, ", name),
                            name.empty() ? "" : ": send it as one of these"));
}

Expected<ImageHeader> check_image(File file) {
  if (file.size() > kImageBytesMax) {
    return refuse(std::format("the file has {} bytes; the limit is {}", file.size(), kImageBytesMax));
  }
  const auto kind = image_kind(file);
  if (!kind) return std::unexpected(kind.error());
  switch (*kind) {
    case ImageKind::jpeg:
      return check_jpeg(file);
    case ImageKind::webp:
      return check_webp(file);
    case ImageKind::gif:
      return check_gif(file);
    case ImageKind::bmp:
      return check_bmp(file);
    case ImageKind::png:
      break;
  }
  return check_png(file);
}

}  // namespace uma::image
