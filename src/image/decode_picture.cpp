#include "image/decode_picture.h"

#include <algorithm>
#include <format>
#include <utility>

#include "image/image_header.h"
#include "image/picture_formats.h"

namespace uma::image {
namespace {

constexpr int kOrientationMax = 8;
constexpr int kSwappedFrom = 5;  // From this orientation on, rows are shown as columns.

// The picture as the orientation shows it (EXIF 2.32, tag 274).
llm::Picture turned(const llm::Picture& picture, int orientation) {
  const bool is_swapped = orientation >= kSwappedFrom;
  const std::int64_t last_x = picture.width - 1;
  const std::int64_t last_y = picture.height - 1;
  llm::Picture shown = white_picture(is_swapped ? picture.height : picture.width, is_swapped ? picture.width : picture.height);
  const auto source = [&](std::int64_t x, std::int64_t y) -> std::pair<std::int64_t, std::int64_t> {
    switch (orientation) {
      case 2:
        return {last_x - x, y};
      case 3:
        return {last_x - x, last_y - y};
      case 4:
        return {x, last_y - y};
      case 5:
        return {y, x};
      case 6:
        return {y, last_y - x};
      case 7:
        return {last_x - y, last_y - x};
      case 8:
        return {last_x - y, x};
      default:
        return {x, y};
    }
  };
  for (std::int64_t y = 0; y < shown.height; ++y) {
    const std::span<std::uint8_t> row = row_of(shown, y);
    for (std::int64_t x = 0; x < shown.width; ++x) {
      const auto [from_x, from_y] = source(x, y);
      const auto from = static_cast<std::size_t>(from_y * picture.width + from_x) * 3;
      std::copy_n(picture.levels.begin() + static_cast<std::ptrdiff_t>(from), 3,
                  row.begin() + static_cast<std::ptrdiff_t>(x * 3));
    }
  }
  return shown;
}

Expected<Decoded> decode(ImageKind kind, File file) {
  switch (kind) {
    case ImageKind::jpeg:
      return decode_jpeg(file);
    case ImageKind::webp:
      return decode_webp(file);
    case ImageKind::gif:
      return decode_gif(file);
    case ImageKind::bmp:
      return decode_bmp(file);
    case ImageKind::png:
      break;
  }
  return decode_png(file);
}

}  // namespace

std::unexpected<Error> undecodable(std::string_view format, std::string_view why) {
  return fail(ErrorCode::proto_field, std::format("the image cannot be read: the {} file is damaged ({})", format, why));
}

llm::Picture white_picture(std::int64_t width, std::int64_t height) {
  constexpr std::uint8_t kWhite = 255;
  return {.width = static_cast<std::int32_t>(width),
          .height = static_cast<std::int32_t>(height),
          .levels = std::vector<std::uint8_t>(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3, kWhite)};
}

void lay_over_white(std::span<const std::uint8_t> rgba, std::span<std::uint8_t> rgb) {
  constexpr unsigned kMost = 255;
  for (std::size_t from = 0, to = 0; from + 3 < rgba.size() && to + 2 < rgb.size(); from += 4, to += 3) {
    const unsigned alpha = rgba[from + 3];
    for (std::size_t colour = 0; colour < 3; ++colour) {
      const unsigned level = rgba[from + colour] * alpha + kMost * (kMost - alpha);
      rgb[to + colour] = static_cast<std::uint8_t>((level + kMost / 2) / kMost);
    }
  }
}

Expected<llm::Picture> decode_picture(std::span<const std::byte> file, Turns turns) {
  const auto kind = image_kind(file);
  if (!kind) return std::unexpected(kind.error());
  auto decoded = decode(*kind, file);
  if (!decoded) return std::unexpected(decoded.error());
  const int orientation = decoded->orientation;
  if (turns == Turns::no || orientation <= kUpright || orientation > kOrientationMax) return std::move(decoded->picture);
  return turned(decoded->picture, orientation);
}

// EXIF is a TIFF file, whose first directory has entries of 12 bytes: tag, type, count, value.
int orientation_of(File exif) {
  constexpr std::size_t kEntry = 12;
  constexpr std::uint32_t kOrientation = 274;
  constexpr std::uint32_t kShort = 3;
  if (begins_with(exif, std::string_view("Exif\0\0", 6))) exif = exif.subspan(6);
  const bool is_big = begins_with(exif, "MM");
  if (exif.size() < 8 || (!is_big && !begins_with(exif, "II"))) return kUpright;
  const auto number16 = [&](std::size_t at) { return is_big ? big16(exif, at) : little16(exif, at); };
  const std::size_t directory = is_big ? big32(exif, 4) : little32(exif, 4);
  if (directory > exif.size() - 2) return kUpright;
  std::size_t at = directory + 2;
  for (std::uint32_t left = number16(directory); left > 0 && at + kEntry <= exif.size(); --left, at += kEntry) {
    if (number16(at) != kOrientation) continue;
    return number16(at + 2) == kShort ? static_cast<int>(number16(at + 8)) : kUpright;
  }
  return kUpright;
}

}  // namespace uma::image
