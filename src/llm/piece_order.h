// The tokens of a vocabulary in order of their pieces, so that one walk over them compares each common beginning once.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ids.h"

namespace uma::llm {

class Vocab;

struct OrderedPiece {
  Token token = 0;
  std::uint32_t shared = 0;  // bytes of its piece that the one before begins with too
};

// Without tokens that have no text, and without those that end a generation. O(n log n) for n tokens.
[[nodiscard]] std::vector<OrderedPiece> order_pieces(const Vocab& vocab);

}  // namespace uma::llm
