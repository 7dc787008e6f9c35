#include "llm/media/piece_order.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "llm/model.h"

namespace uma::llm {
namespace {

class ListedVocab final : public Vocab {
 public:
  explicit ListedVocab(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}
  [[nodiscard]] std::int32_t size() const override { return static_cast<std::int32_t>(pieces_.size()); }
  [[nodiscard]] Expected<std::vector<Token>> tokenize(std::string_view, bool) const override { return std::vector<Token>(); }
  [[nodiscard]] std::string_view piece(Token token) const override { return pieces_[static_cast<std::size_t>(token)]; }
  [[nodiscard]] std::span<const OrderedPiece> ordered_pieces() const override { return {}; }
  [[nodiscard]] bool is_end_of_generation(Token) const override { return false; }
  [[nodiscard]] std::span<const Token> end_of_generation() const override { return {}; }
  [[nodiscard]] std::optional<Token> bos() const override { return std::nullopt; }
  [[nodiscard]] bool adds_space_prefix() const override { return false; }

 private:
  const std::vector<std::string> pieces_;
};

TEST(OrderPieces, OrdersLongPiecesAndThoseWithZerosByAllTheirBytes) {
  const ListedVocab vocab({"a long piece b", "a long piece", std::string("a\0", 2), "a", "\xff", "a long piece a", "a"});
  std::vector<Token> tokens;
  std::vector<std::uint32_t> shared;
  for (const OrderedPiece& piece : order_pieces(vocab)) {
    tokens.push_back(piece.token);
    shared.push_back(piece.shared);
  }
  EXPECT_EQ(tokens, (std::vector<Token>{3, 6, 2, 1, 5, 0, 4}));
  EXPECT_EQ(shared, (std::vector<std::uint32_t>{0, 1, 1, 1, 12, 13, 0}));
}

}  // namespace
}  // namespace uma::llm
