#include "llm/detokenizer.h"

#include <gtest/gtest.h>

namespace uma::llm {
namespace {

// Three tokens: the two halves of an emoji, and an invalid byte.
class PieceVocab final : public Vocab {
 public:
  [[nodiscard]] std::int32_t size() const override { return 3; }
  [[nodiscard]] Expected<std::vector<Token>> tokenize(std::string_view, bool) const override { return std::vector<Token>(); }
  [[nodiscard]] std::string_view piece(Token token) const override {
    constexpr std::string_view kPieces[] = {"a\xf0\x9f", "\x98\x80z", "\xff"};
    return kPieces[token];
  }
  [[nodiscard]] std::span<const OrderedPiece> ordered_pieces() const override { return {}; }
  [[nodiscard]] bool is_end_of_generation(Token) const override { return false; }
  [[nodiscard]] std::span<const Token> end_of_generation() const override { return {}; }
  [[nodiscard]] std::optional<Token> bos() const override { return std::nullopt; }
  [[nodiscard]] bool adds_space_prefix() const override { return false; }
};

TEST(Detokenizer, HoldsACharacterUntilItIsWhole) {
  const PieceVocab vocab;
  Detokenizer detokenizer(vocab);
  std::string out;
  detokenizer.push(0, out);
  EXPECT_EQ(out, "a");
  detokenizer.push(1, out);
  EXPECT_EQ(out, "a\U0001F600z");
}

TEST(Detokenizer, ReplacesWhatCanNeverBeACharacter) {
  const PieceVocab vocab;
  Detokenizer detokenizer(vocab);
  std::string out;
  detokenizer.push(0, out);
  detokenizer.push(2, out);
  EXPECT_EQ(out, "a\ufffd\ufffd") << "the broken start and the stray byte";
  detokenizer.push(0, out);
  detokenizer.finish(out);
  EXPECT_EQ(out, "a\ufffd\ufffda\ufffd");
}

}  // namespace
}  // namespace uma::llm
