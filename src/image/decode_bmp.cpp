#include <array>
#include <bit>
#include <cstdlib>
#include <vector>

#include "image/picture_formats.h"

namespace uma::image {
namespace {

constexpr std::size_t kFileHeader = 14;
constexpr std::size_t kOldHeader = 40;       // The oldest one that check_image() accepts.
constexpr std::uint32_t kMaskedColours = 3;  // The compression that means: the colours are where the masks say.

// The bits of a colour in a pixel.
class BmpChannel {
 public:
  explicit BmpChannel(std::uint32_t mask) : mask_(mask), shift_(mask == 0 ? 0 : std::countr_zero(mask)) {}

  [[nodiscard]] bool is_empty() const { return mask_ == 0; }
  [[nodiscard]] std::uint8_t level(std::uint32_t pixel) const {
    constexpr std::uint64_t kMost = 255;
    const std::uint64_t most = mask_ >> shift_;
    return most == 0 ? 0 : static_cast<std::uint8_t>(((pixel & mask_) >> shift_) * kMost / most);
  }

 private:
  std::uint32_t mask_;
  int shift_;
};

struct BmpLayout {
  std::size_t header = 0;  // Bytes of the second header.
  std::uint32_t depth = 0;
  std::array<BmpChannel, 3> colours{BmpChannel(0), BmpChannel(0), BmpChannel(0)};  // Red, green and blue.
  BmpChannel alpha{0};
};

BmpLayout bmp_layout(File file) {
  BmpLayout layout{.header = little32(file, kFileHeader), .depth = little16(file, kFileHeader + 14)};
  const bool has_masks = little32(file, kFileHeader + 16) == kMaskedColours;
  constexpr std::size_t kMaskBytes = 4;
  const auto mask = [&](std::size_t i) {
    const std::size_t at = kFileHeader + kOldHeader + i * kMaskBytes;
    return at + kMaskBytes <= file.size() ? little32(file, at) : 0;
  };
  if (has_masks) {
    layout.colours = {BmpChannel(mask(0)), BmpChannel(mask(1)), BmpChannel(mask(2))};
    constexpr std::size_t kHeaderWithAlpha = 56;
    if (layout.header >= kHeaderWithAlpha) layout.alpha = BmpChannel(mask(3));
  } else if (layout.depth == 16) {
    layout.colours = {BmpChannel(0x7C00), BmpChannel(0x3E0), BmpChannel(0x1F)};
  } else {
    layout.colours = {BmpChannel(0xFF0000), BmpChannel(0xFF00), BmpChannel(0xFF)};
  }
  return layout;
}

// The bytes of the colours of a palette: blue, green, red, and one without a meaning.
File bmp_palette(File file, const BmpLayout& layout) {
  constexpr std::size_t kColourBytes = 4;
  std::size_t count = little32(file, kFileHeader + 32);
  const std::size_t most = std::size_t{1} << layout.depth;
  if (count == 0 || count > most) count = most;
  const std::size_t begin = kFileHeader + layout.header;
  if (begin >= file.size()) return {};
  return file.subspan(begin, std::min(count * kColourBytes, file.size() - begin));
}

void write_row_of_palette(File row, std::uint32_t depth, File palette, std::span<std::uint8_t> rgb) {
  const std::uint32_t per_byte = 8 / depth;
  for (std::size_t x = 0; 3 * x < rgb.size(); ++x) {
    const std::uint32_t shift = (per_byte - 1 - static_cast<std::uint32_t>(x % per_byte)) * depth;
    const std::size_t entry = ((byte_at(row, x / per_byte) >> shift) & ((1U << depth) - 1)) * std::size_t{4};
    for (std::size_t colour = 0; colour < 3; ++colour) {
      rgb[3 * x + colour] = entry + 2 < palette.size() ? static_cast<std::uint8_t>(byte_at(palette, entry + 2 - colour)) : 0;
    }
  }
}

std::uint32_t bmp_pixel(File row, std::size_t x, std::uint32_t depth) {
  switch (depth) {
    case 16:
      return little16(row, 2 * x);
    case 24:
      return little16(row, 3 * x) | byte_at(row, 3 * x + 2) << 16;
    default:
      return little32(row, 4 * x);
  }
}

// Whether the picture has alpha and is not transparent everywhere: some programs leave all alpha 0 and mean none.
bool shows_anything(File pixels, const BmpLayout& layout, std::size_t row_bytes, std::int32_t width, std::int32_t height) {
  if (layout.alpha.is_empty() || layout.depth <= 8) return false;
  for (std::size_t y = 0; y < static_cast<std::size_t>(height); ++y) {
    const File row = pixels.subspan(y * row_bytes, row_bytes);
    for (std::size_t x = 0; x < static_cast<std::size_t>(width); ++x) {
      if (layout.alpha.level(bmp_pixel(row, x, layout.depth)) != 0) return true;
    }
  }
  return false;
}

}  // namespace

// Rows begin at the bottom, unless the height is negative, and are a multiple of four bytes long.
Expected<Decoded> decode_bmp(File file) {
  const BmpLayout layout = bmp_layout(file);
  const auto width = static_cast<std::int32_t>(little32(file, kFileHeader + 4));
  const auto height = static_cast<std::int32_t>(little32(file, kFileHeader + 8));
  Decoded decoded{.picture = white_picture(width, std::abs(height))};
  llm::Picture& picture = decoded.picture;
  const std::size_t row_bytes = (static_cast<std::size_t>(width) * layout.depth + 31) / 32 * 4;
  const std::size_t pixels_begin = little32(file, 10);
  const File palette = layout.depth <= 8 ? bmp_palette(file, layout) : File();
  const bool has_alpha = shows_anything(file.subspan(pixels_begin), layout, row_bytes, width, picture.height);
  std::vector<std::uint8_t> rgba(static_cast<std::size_t>(width) * 4);
  for (std::int64_t y = 0; y < picture.height; ++y) {
    const File row = file.subspan(pixels_begin + static_cast<std::size_t>(y) * row_bytes, row_bytes);
    const std::span<std::uint8_t> rgb = row_of(picture, height < 0 ? y : picture.height - 1 - y);
    if (layout.depth <= 8) {
      write_row_of_palette(row, layout.depth, palette, rgb);
      continue;
    }
    constexpr std::uint8_t kOpaque = 255;
    for (std::size_t x = 0; x < static_cast<std::size_t>(width); ++x) {
      const std::uint32_t pixel = bmp_pixel(row, x, layout.depth);
      for (std::size_t colour = 0; colour < 3; ++colour) rgba[4 * x + colour] = layout.colours[colour].level(pixel);
      rgba[4 * x + 3] = has_alpha ? layout.alpha.level(pixel) : kOpaque;
    }
    lay_over_white(rgba, rgb);
  }
  return decoded;
}

}  // namespace uma::image
