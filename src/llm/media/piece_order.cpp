#include "llm/media/piece_order.h"

#include <algorithm>
#include <string_view>

#include "llm/model.h"

namespace uma::llm {

namespace {

struct Piece {
  std::uint64_t head = 0;  // The first bytes as a number, so that most comparisons need no others.
  std::string_view text;
  Token token = 0;
};

std::uint64_t head_of(std::string_view text) {
  std::uint64_t head = 0;
  for (std::size_t i = 0; i < sizeof(head); ++i) head = head << 8 | (i < text.size() ? static_cast<unsigned char>(text[i]) : 0);
  return head;
}

}  // namespace

std::vector<OrderedPiece> order_pieces(const Vocab& vocab) {
  std::vector<Piece> pieces;
  for (Token token = 0; token < vocab.size(); ++token) {
    const std::string_view text = vocab.piece(token);
    if (!text.empty() && !vocab.is_end_of_generation(token)) pieces.push_back({head_of(text), text, token});
  }
  std::ranges::stable_sort(pieces,
                           [](const Piece& a, const Piece& b) { return a.head != b.head ? a.head < b.head : a.text < b.text; });
  std::vector<OrderedPiece> ordered;
  ordered.reserve(pieces.size());
  std::string_view before;
  for (const Piece& piece : pieces) {
    const auto shared = static_cast<std::uint32_t>(std::ranges::mismatch(before, piece.text).in1 - before.begin());
    ordered.push_back({piece.token, shared});
    before = piece.text;
  }
  return ordered;
}

}  // namespace uma::llm
