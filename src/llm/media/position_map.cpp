#include "llm/media/position_map.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace uma::llm {
namespace {

constexpr std::size_t kSpanWords = 3;
constexpr std::size_t kSpanBytes = kSpanWords * sizeof(std::uint32_t);

}  // namespace

std::span<const ImageSpan> PositionMap::images_within(std::int32_t begin, std::int32_t end) const {
  const auto first = std::ranges::lower_bound(images_, begin, {}, &ImageSpan::begin);
  return {first, std::ranges::lower_bound(images_, end, {}, &ImageSpan::begin)};
}

std::int32_t PositionMap::position_of(std::int32_t token) const {
  std::int32_t saved = 0;  // Positions that the images before the token save.
  for (const ImageSpan& image : images_) {
    if (token < image.end()) break;
    saved += image.rows - image.advance;
  }
  return token - saved;
}

std::int32_t PositionMap::tokens_before(std::int32_t position) const {
  std::int32_t saved = 0;
  for (const ImageSpan& image : images_) {
    const std::int32_t first = image.begin - saved;
    if (position <= first) break;
    if (position < first + image.advance) return image.end();
    saved += image.rows - image.advance;
  }
  return position + saved;
}

bool PositionMap::divides_image(std::int32_t token) const {
  return std::ranges::any_of(images_, [&](const ImageSpan& image) { return image.begin < token && token < image.end(); });
}

void PositionMap::add(const ImageSpan& image) {
  UMA_CHECK(image.rows > 0 && image.advance > 0 && image.advance <= image.rows);
  UMA_CHECK(images_.empty() || images_.back().end() <= image.begin);
  images_.push_back(image);
}

void PositionMap::cut(std::int32_t token) {
  UMA_CHECK(!divides_image(token));
  std::erase_if(images_, [&](const ImageSpan& image) { return image.begin >= token; });
}

std::size_t images_bytes(std::size_t images) {
  return images * kSpanBytes + sizeof(std::uint32_t);
}

void append_images(std::span<const ImageSpan> images, Bytes& state) {
  const auto add = [&](std::uint32_t word) {
    const auto bytes = std::as_bytes(std::span(&word, 1));
    state.insert(state.end(), bytes.begin(), bytes.end());
  };
  for (const ImageSpan& image : images) {
    for (const std::int32_t number : {image.begin, image.rows, image.advance}) add(static_cast<std::uint32_t>(number));
  }
  add(static_cast<std::uint32_t>(images.size()));
}

std::optional<StateWithImages> split_images(std::span<const std::byte> state, std::int32_t begin, std::int32_t end) {
  std::uint32_t count = 0;
  if (state.size() < sizeof count) return std::nullopt;
  std::memcpy(&count, state.last(sizeof count).data(), sizeof count);
  state = state.first(state.size() - sizeof count);
  if (count > state.size() / kSpanBytes) return std::nullopt;
  const auto table = state.last(count * kSpanBytes);
  StateWithImages parts{.library = state.first(state.size() - table.size()), .images = {}};
  parts.images.reserve(count);
  std::int32_t at = begin;
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t numbers[kSpanWords];
    std::memcpy(numbers, table.subspan(i * kSpanBytes).data(), kSpanBytes);
    const ImageSpan image{.begin = numbers[0], .rows = numbers[1], .advance = numbers[2]};
    const bool is_inside = image.begin >= at && image.begin < end && image.rows > 0 && image.rows <= end - image.begin;
    if (!is_inside || image.advance < 1 || image.advance > image.rows) return std::nullopt;
    at = image.end();
    parts.images.push_back(image);
  }
  return parts;
}

}  // namespace uma::llm
