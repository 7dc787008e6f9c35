#include "chat/infill.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "testing/fake_model.h"

namespace uma::chat {
namespace {

constexpr Token kPrefix = 'P';
constexpr Token kSuffix = 'S';
constexpr Token kMiddle = 'M';
constexpr Token kRepository = 'R';
constexpr Token kFile = 'F';

// Bytes, of which the capital letters above are marks.
class GapVocab final : public llm::Vocab {
 public:
  explicit GapVocab(bool has_files) : has_files_(has_files) {}
  [[nodiscard]] std::int32_t size() const override { return bytes_.size(); }
  [[nodiscard]] Expected<std::vector<Token>> tokenize(std::string_view text, bool parse_special) const override {
    EXPECT_FALSE(parse_special) << "a user's text could contain marks";
    return bytes_.tokenize(text, parse_special);
  }
  [[nodiscard]] std::string_view piece(Token token) const override { return bytes_.piece(token); }
  [[nodiscard]] std::span<const llm::OrderedPiece> ordered_pieces() const override { return bytes_.ordered_pieces(); }
  [[nodiscard]] bool is_end_of_generation(Token token) const override { return bytes_.is_end_of_generation(token); }
  [[nodiscard]] std::span<const Token> end_of_generation() const override { return bytes_.end_of_generation(); }
  [[nodiscard]] std::optional<Token> bos() const override { return bytes_.bos(); }
  [[nodiscard]] bool adds_space_prefix() const override { return false; }
  [[nodiscard]] std::optional<llm::GapMarks> gap_marks() const override {
    llm::GapMarks marks{.prefix = kPrefix, .suffix = kSuffix, .middle = kMiddle};
    if (has_files_) {
      marks.repository = kRepository;
      marks.file = kFile;
    }
    return marks;
  }

 private:
  const bool has_files_;
  const testing::FakeVocab bytes_;
};

// The prompt as text, with BOS as "^".
std::string prompt_of(const llm::Vocab& vocab, std::string_view prefix, const Infill& infill) {
  std::string text;
  const std::vector<Token> tokens = tokenize_infill(vocab, prefix, infill).value();
  for (const Token token : tokens) {
    text += token == testing::kFakeBos ? '^' : static_cast<char>(token);
  }
  return text;
}

TEST(TokenizeInfill, PutsMarksAroundTheParts) {
  const GapVocab vocab(/*has_files=*/true);
  EXPECT_EQ(prompt_of(vocab, "int a", {.suffix = "return a;"}), "^Pint aSreturn a;M");
  EXPECT_EQ(prompt_of(vocab, "", {.suffix = "b", .begun = "a"}), "^PSbMa");
}

TEST(TokenizeInfill, BeginsWithTheOtherFiles) {
  const Infill infill{.suffix = "b", .files = {{.name = "x.h", .text = "one"}, {.name = "y.h", .text = "two"}}};
  EXPECT_EQ(prompt_of(GapVocab(true), "a", infill), "^Rmyproject\nFx.h\none\nFy.h\ntwo\nFfilename\nPaSbM");
  EXPECT_EQ(prompt_of(GapVocab(false), "a", infill), "^x.h\none\ny.h\ntwo\nPaSbM");
}

TEST(TokenizeInfill, RefusesAModelWithoutMarks) {
  const testing::FakeVocab vocab;
  const auto tokens = tokenize_infill(vocab, "a", {.suffix = "b"});
  ASSERT_FALSE(tokens);
  EXPECT_EQ(tokens.error().code, ErrorCode::model_capability);
}

}  // namespace
}  // namespace uma::chat
