// The tokens of a vocabulary, sorted by their pieces, so that one pass compares each common beginning once.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ids.h"

namespace uma::llm {

class Vocab;

struct OrderedPiece {
  Token token = 0;
  std::uint32_t shared = 0;  // Bytes in common with the beginning of the piece before.
};

// Without tokens that have no text, and without end-of-generation tokens. O(n log n) for n tokens.
[[nodiscard]] std::vector<OrderedPiece> order_pieces(const Vocab& vocab);

}  // namespace uma::llm
