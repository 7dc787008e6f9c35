// The positions of a sequence's tokens in a model with positions of several dimensions (M-RoPE). The rows of an image lie at
// one position of the cache, and the token behind them follows after as many positions as the image has lines or columns. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace uma::llm {

// The tokens [begin, begin + rows) are the rows of an image, and take `advance` positions.
struct ImageSpan {
  std::int32_t begin = 0;
  std::int32_t rows = 0;
  std::int32_t advance = 0;
  bool operator==(const ImageSpan&) const = default;

  [[nodiscard]] std::int32_t end() const { return begin + rows; }
};

class PositionMap {
 public:
  // In order, without overlaps.
  [[nodiscard]] std::span<const ImageSpan> images() const { return images_; }
  // The images that begin within these tokens.
  [[nodiscard]] std::span<const ImageSpan> images_within(std::int32_t begin, std::int32_t end) const;
  // The position of the token at this place of the sequence. Requires: not within an image; its first row is no problem.
  [[nodiscard]] std::int32_t position_of(std::int32_t token) const;
  // The number of tokens at positions before this one.
  [[nodiscard]] std::int32_t tokens_before(std::int32_t position) const;
  // Whether a cut before this token would divide an image.
  [[nodiscard]] bool divides_image(std::int32_t token) const;
  // Requires: behind all others.
  void add(const ImageSpan& image);
  // Removes the images from this token on. Requires: it divides none.
  void cut(std::int32_t token);

 private:
  std::vector<ImageSpan> images_;
};

// The images in a saved part of a sequence stand behind the library's bytes, as a table (docs/STATE_FILE.md).
[[nodiscard]] std::size_t images_bytes(std::size_t images);
void append_images(std::span<const ImageSpan> images, Bytes& state);

struct StateWithImages {
  std::span<const std::byte> library;  // The library's bytes.
  std::vector<ImageSpan> images;
};
// Reads any bytes. Nullopt: there is no table of images in order, within the tokens [begin, end).
[[nodiscard]] std::optional<StateWithImages> split_images(std::span<const std::byte> state, std::int32_t begin,
                                                          std::int32_t end);

}  // namespace uma::llm
