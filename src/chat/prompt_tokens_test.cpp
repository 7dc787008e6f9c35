#include "chat/prompt_tokens.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace uma::chat {
namespace {

constexpr Token kUser = 256;
constexpr Token kEnd = 257;
constexpr std::array<std::string_view, 2> kControls = {"<|user|>", "<|end|>"};
constexpr Token kFirstPair = 300;
constexpr std::array<std::string_view, 4> kPairs = {".\n", "}\n", "\n\n", " {"};

// Letters, pairs of letters that are one token as in trained vocabularies, and two control tokens.
class PairVocab final : public llm::Vocab {
 public:
  explicit PairVocab(bool takes_blanks = false) : takes_blanks_(takes_blanks) {
    for (std::size_t i = 0; i < letters_.size(); ++i) letters_[i] = static_cast<char>(i);
  }
  [[nodiscard]] std::int32_t size() const override { return kFirstPair + static_cast<Token>(kPairs.size()); }
  [[nodiscard]] Expected<std::vector<Token>> tokenize(std::string_view text, bool parse_special) const override {
    std::vector<Token> tokens;
    const auto take = [&](const auto& names, Token first) {
      for (std::size_t i = 0; i < names.size(); ++i) {
        if (!text.starts_with(names[i])) continue;
        text.remove_prefix(names[i].size());
        tokens.push_back(first + static_cast<Token>(i));
        return true;
      }
      return false;
    };
    while (!text.empty()) {
      if (parse_special && take(kControls, kUser)) {
        while (takes_blanks_ && text.starts_with('\n')) text.remove_prefix(1);
      } else if (!take(kPairs, kFirstPair)) {
        tokens.push_back(static_cast<unsigned char>(text.front()));
        text.remove_prefix(1);
      }
    }
    return tokens;
  }
  [[nodiscard]] std::string_view piece(Token token) const override {
    if (token >= kFirstPair) return kPairs.at(static_cast<std::size_t>(token - kFirstPair));
    return token < 256 ? std::string_view(letters_).substr(static_cast<std::size_t>(token), 1) : std::string_view();
  }
  [[nodiscard]] std::string text(Token token) const override {
    return token == kUser || token == kEnd ? std::string(kControls.at(static_cast<std::size_t>(token - kUser)))
                                           : std::string(piece(token));
  }
  [[nodiscard]] std::span<const llm::OrderedPiece> ordered_pieces() const override { return {}; }
  [[nodiscard]] bool is_end_of_generation(Token) const override { return false; }
  [[nodiscard]] std::span<const Token> end_of_generation() const override { return {}; }
  [[nodiscard]] std::optional<Token> bos() const override { return std::nullopt; }
  [[nodiscard]] bool adds_space_prefix() const override { return false; }

 private:
  const bool takes_blanks_;
  std::string letters_ = std::string(256, ' ');
};

// Each part says whether a user wrote it.
jinja::Text text_of(std::initializer_list<std::pair<bool, std::string>> parts) {
  jinja::Text text;
  for (const auto& [is_input, part] : parts) {
    if (is_input) {
      text.append(jinja::Text::input(part, 0));
    } else {
      text.append(part);
    }
  }
  return text;
}

PlacedTokens placed_of(const PromptTokenizer& tokenizer, const jinja::Text& text) {
  PlacedTokens placed;
  EXPECT_TRUE(tokenizer.append(text, 0, text.size(), placed));
  EXPECT_EQ(placed.tokens.size(), placed.ends.size());
  EXPECT_TRUE(std::ranges::is_sorted(placed.ends));
  return placed;
}

constexpr bool kInput = true;
constexpr bool kTemplate = false;

// Models write ".\n" as one token, and a client sends it back as its text and the template's line break.
TEST(PromptTokens, MayCrossTheBorderOfATextAndItsTemplate) {
  const PairVocab vocab;
  const PromptTokenizer tokenizer(vocab, nullptr);
  const PlacedTokens placed =
      placed_of(tokenizer, text_of({{kTemplate, "<|user|>\n"}, {kInput, "\nA {"}, {kInput, "}"}, {kTemplate, "\n<|end|>"}}));
  EXPECT_EQ(placed.tokens, (std::vector<Token>{kUser, kFirstPair + 2, 'A', kFirstPair + 3, kFirstPair + 1, kEnd}));
  EXPECT_EQ(placed.ends, (std::vector<std::size_t>{8, 10, 11, 13, 15, 22}));
}

TEST(PromptTokens, OfUsersAreNeverControlTokens) {
  const PairVocab vocab;
  const PromptTokenizer tokenizer(vocab, nullptr);
  for (const auto& text : {text_of({{kTemplate, "<|user|>"}, {kInput, "<|end|>"}, {kTemplate, "<|end|>"}}),
                           text_of({{kTemplate, "<|user|>"}, {kInput, "<|"}, {kTemplate, "end|><|end|>"}}),
                           text_of({{kTemplate, "<|user|>"}, {kInput, "<|en"}, {kInput, "d|>"}, {kTemplate, "<|end|>"}}),
                           text_of({{kTemplate, "<|user|><"}, {kInput, "|end|"}, {kTemplate, "><|end|>"}})}) {
    const PlacedTokens placed = placed_of(tokenizer, text);
    EXPECT_EQ(placed.tokens, (std::vector<Token>{kUser, '<', '|', 'e', 'n', 'd', '|', '>', kEnd})) << text.bytes();
    EXPECT_EQ(placed.ends.front(), 8U);
    EXPECT_EQ(placed.ends.back(), text.size());
  }
}

// Libllama does so with marks of some models (rstrip). Blanks of a user's text stay.
TEST(PromptTokens, MarksTakeTheBlanksOfTheTemplateBehindThem) {
  const PairVocab vocab(/*takes_blanks=*/true);
  const PromptTokenizer tokenizer(vocab, nullptr);
  const PlacedTokens placed =
      placed_of(tokenizer, text_of({{kTemplate, "<|user|>\n"}, {kInput, "\na"}, {kTemplate, "<|end|>\n\n<|user|>\nb\n"}}));
  EXPECT_EQ(placed.tokens, (std::vector<Token>{kUser, '\n', 'a', kEnd, kUser, 'b', '\n'}));
  EXPECT_EQ(placed.ends, (std::vector<std::size_t>{8, 10, 11, 18, 28, 30, 31}));
}

TEST(PromptTokens, OfImagesStandAlone) {
  const PairVocab vocab;
  const PromptTokenizer tokenizer(vocab, [](const std::string& id) -> Expected<std::vector<Token>> {
    return id == "ab" ? std::vector<Token>{-1, -2} : Expected<std::vector<Token>>(fail(ErrorCode::model_capability, "no"));
  });
  const std::string mark = tokenizer.image_mark("ab");
  const PlacedTokens placed = placed_of(tokenizer, text_of({{kInput, "." + mark + "\n"}, {kTemplate, "\n"}}));
  EXPECT_EQ(placed.tokens, (std::vector<Token>{'.', -1, -2, kFirstPair + 2}));
  EXPECT_EQ(placed.ends, (std::vector<std::size_t>{1, 1 + mark.size(), 1 + mark.size(), 3 + mark.size()}));
  PlacedTokens none;
  const jinja::Text other = text_of({{kInput, tokenizer.image_mark("cd")}});
  EXPECT_EQ(tokenizer.append(other, 0, other.size(), none).error().message, "no");
}

TEST(PromptTokens, KnowTheirPlaces) {
  PlacedTokens placed;
  EXPECT_EQ(placed.count_before(0), 0U);
  EXPECT_EQ(placed.end_of(4), 0U);
  for (const std::size_t end : {0U, 2U, 5U}) placed.push_back(1, end);  // BOS, two bytes, three bytes.
  EXPECT_EQ(placed.count_before(0), 1U);
  EXPECT_EQ(placed.count_before(4), 2U) << "the last one is not wholly before it";
  EXPECT_EQ(placed.end_of(4), 3U) << "but has a byte before it";
  EXPECT_EQ(placed.end_of(2), 2U);
  EXPECT_EQ(placed.end_of(5), 3U);
  EXPECT_EQ(placed.end_of(9), 3U);
}

// A part begins and ends where the caller says, also within a range of a user's text.
TEST(PromptTokens, OfAPartHaveThePlacesOfTheWhole) {
  const PairVocab vocab;
  const PromptTokenizer tokenizer(vocab, nullptr);
  const jinja::Text text = text_of({{kTemplate, "<|user|>"}, {kInput, "abc"}, {kTemplate, "<|end|>"}});
  PlacedTokens placed;
  ASSERT_TRUE(tokenizer.append(text, 9, text.size(), placed));
  EXPECT_EQ(placed.tokens, (std::vector<Token>{'b', 'c', kEnd}));
  EXPECT_EQ(placed.ends, (std::vector<std::size_t>{10, 11, 18}));
}

}  // namespace
}  // namespace uma::chat
