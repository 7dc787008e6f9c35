// What reads images for a model: a vision encoder whose rows stand where tokens stand otherwise (libmtmd).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/ids.h"

namespace uma::llm {

struct ProjectorFacts {
  std::string identity;        // differs where the same image has other rows
  std::int32_t row_width = 0;  // numbers of a row
  bool is_causal = true;       // false: the rows of a piece see each other, so they are computed in one call
};

// How an image stands in a chain.
struct ImageLayout {
  std::vector<Token> tokens;         // the marks around its pieces; kNoToken in the place of each row
  std::vector<std::int32_t> pieces;  // rows of each piece, in order

  [[nodiscard]] std::int32_t rows_count() const {
    std::int32_t rows = 0;
    for (const std::int32_t piece : pieces) rows += piece;
    return rows;
  }
};

// `image`, here as below: a PNG, JPEG, BMP or GIF file whose header was checked (capability/image_header.h).
class Projector {
 public:
  virtual ~Projector() = default;
  [[nodiscard]] virtual const ProjectorFacts& facts() const = 0;
  // Any thread. Decodes the image. Errors: E_PROTO_003 for one that cannot be decoded.
  [[nodiscard]] virtual Expected<ImageLayout> layout(std::span<const std::byte> image) const = 0;
  // One thread at a time. rows_count() rows of row_width numbers. Errors: as layout(); E_RUNTIME_001.
  [[nodiscard]] virtual Expected<std::vector<float>> encode(std::span<const std::byte> image) = 0;
};

}  // namespace uma::llm
