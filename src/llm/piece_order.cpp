#include "llm/piece_order.h"

#include <algorithm>
#include <string_view>

#include "llm/model.h"

namespace uma::llm {

std::vector<OrderedPiece> order_pieces(const Vocab& vocab) {
  std::vector<OrderedPiece> pieces;
  for (Token token = 0; token < vocab.size(); ++token) {
    if (!vocab.piece(token).empty() && !vocab.is_end_of_generation(token)) pieces.push_back({token, 0});
  }
  std::ranges::stable_sort(pieces, {}, [&](const OrderedPiece& piece) { return vocab.piece(piece.token); });
  std::string_view before;
  for (OrderedPiece& piece : pieces) {
    const std::string_view text = vocab.piece(piece.token);
    piece.shared = static_cast<std::uint32_t>(std::ranges::mismatch(before, text).in1 - before.begin());
    before = text;
  }
  return pieces;
}

}  // namespace uma::llm
