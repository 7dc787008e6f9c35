// The rows of an image, as a context computes them.
#pragma once

#include <cstdint>
#include <span>

#include "core/ids.h"
#include "llm/media/projector.h"

namespace uma::llm {

// The positions of the rows of one piece (ImageGrid).
struct GridView {
  std::span<const GridPlace> places;  // Empty: consecutive positions of one dimension.
  GridPlace moves{};
  std::int32_t advance = 0;
};

// The rows of an image, which continue one sequence.
struct ImageRows {
  std::span<const Token> tokens;  // The image tokens of the rows in the chain.
  std::span<const float> values;  // The result of Projector::encode().
  std::int32_t position = 0;      // Position of the first row.
  std::int32_t sequence = 0;
  bool is_causal = true;      // False: each row attends to all rows.
  bool wants_logits = false;  // Logits of the last row.
  GridView grid{};
};

}  // namespace uma::llm
