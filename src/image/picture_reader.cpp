#include "image/picture_reader.h"

#include <algorithm>
#include <cstddef>
#include <format>

#include "base/check.h"
#include "image/image_header.h"
#include "image/image_source.h"

namespace uma::image {
namespace {

// The pixels from `begin` on that pixel `at` of `count` covers, if they are made of `length`.
struct Covered {
  std::int64_t begin;
  std::int64_t end;
};
Covered covered(std::int64_t at, std::int64_t count, std::int64_t begin, std::int64_t length) {
  const std::int64_t first = begin + at * length / count;
  return {first, std::max(first + 1, begin + (at + 1) * length / count)};
}

}  // namespace

std::vector<std::uint8_t> fitted(const llm::Picture& picture, std::int32_t width, std::int32_t height) {
  UMA_CHECK(width > 0 && height > 0 && picture.width > 0 && picture.height > 0);
  // The largest part with the wanted shape.
  const std::int64_t part_width = std::clamp<std::int64_t>(std::int64_t{picture.height} * width / height, 1, picture.width);
  const std::int64_t part_height = std::clamp<std::int64_t>(std::int64_t{picture.width} * height / width, 1, picture.height);
  const std::int64_t left = (picture.width - part_width) / 2;
  const std::int64_t top = (picture.height - part_height) / 2;
  std::vector<std::uint8_t> levels;
  levels.reserve(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3);
  for (std::int64_t y = 0; y < height; ++y) {
    const Covered rows = covered(y, height, top, part_height);
    for (std::int64_t x = 0; x < width; ++x) {
      const Covered columns = covered(x, width, left, part_width);
      std::uint64_t sums[3] = {};
      for (std::int64_t row = rows.begin; row < rows.end; ++row) {
        for (std::int64_t column = columns.begin; column < columns.end; ++column) {
          for (std::size_t colour = 0; colour < 3; ++colour)
            sums[colour] += picture.levels[static_cast<std::size_t>(row * picture.width + column) * 3 + colour];
        }
      }
      const auto count = static_cast<std::uint64_t>((rows.end - rows.begin) * (columns.end - columns.begin));
      for (const std::uint64_t sum : sums) levels.push_back(static_cast<std::uint8_t>((sum + count / 2) / count));
    }
  }
  return levels;
}

Expected<std::vector<std::uint8_t>> read_fitted(const ImageSource& source, std::int32_t width, std::int32_t height,
                                                const DecodePicture& decode, const std::stop_token& end) {
  constexpr std::int64_t kPixelsMax = 16'000'000;
  const auto file = read_image(source, {});
  if (!file) return std::unexpected(file.error());
  const auto header = check_image(*file);
  if (!header) return std::unexpected(header.error());
  if (header->width * header->height > kPixelsMax) {
    return fail(ErrorCode::proto_field, std::format("the picture has {} × {} pixels, and a drawing begins with up to {}",
                                                    header->width, header->height, kPixelsMax));
  }
  const auto picture = decode(*file, Turns::yes, end);
  if (!picture) return std::unexpected(picture.error());
  return fitted(*picture, width, height);
}

}  // namespace uma::image
