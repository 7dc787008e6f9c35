// Finds places at which a text can be cut before it is tokenized, because the library's time may grow with the square of a
// text's length: it looks for each of a vocabulary's special tokens in all pieces between those that it has found, and
// SentencePiece's tokenizer copies all tokens for each character that has to be written as bytes. Immutable: any thread.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace uma::llm {

class TextCuts {
 public:
  // A special token's text.
  struct Special {
    std::string text;
    bool takes_blanks_before = false;  // The library drops blanks before it,
    bool takes_blanks_behind = false;  // or behind it.
  };
  // The characters that stand in some token's text, by code point.
  using Characters = std::vector<bool>;
  // `joined`: with a tokenizer that joins neighbors only to tokens' texts, those that may be joined; others stand alone.
  // Nullopt: with any other tokenizer.
  explicit TextCuts(std::vector<Special> specials, std::optional<Characters> joined = std::nullopt);

  // The first place at `from` or behind it, but not 0, such that both parts have the tokens of the whole text; the text's size
  // if there is none. The text begins where another one was cut. O(bytes up to there).
  [[nodiscard]] std::size_t next(std::string_view text, std::size_t from) const;

 private:
  // The longest special token that begins at `at`; null: none.
  [[nodiscard]] const Special* longest_at(std::string_view text, std::size_t at) const;
  // Whether a character that stands alone begins at `at`, which is in no special token.
  [[nodiscard]] bool is_alone(std::string_view text, std::size_t at) const;
  // Whether the library finds `special` at `at`, if no other one before that overlaps it: it takes the longest first, and of
  // equal ones the first.
  [[nodiscard]] bool is_certain(const Special& special, std::string_view text, std::size_t at) const;

  std::vector<Special> specials_;   // Sorted by text, which is unique.
  std::array<bool, 256> begins_{};  // The bytes with which one begins.
  bool takes_blanks_ = false;       // Some special takes blanks, which may belong to another one.
  std::optional<Characters> joined_;
};

}  // namespace uma::llm
