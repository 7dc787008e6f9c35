// The vocabularies of make_model. One kind is for a SentencePiece ("llama") tokenizer that turns every word of the vocabulary
// into exactly one token.
//
// The tokenizer starts from single characters and repeatedly merges the two neighbours whose union is the token with the
// highest score. There are two kinds of unions here, so that every word has exactly one path:
//   1. syllables ("ke"), with the higher scores: consonant + vowel, which never overlap;
//   2. beginnings of words ("▁ba", "▁bake", "▁bakedo"), which grow from "▁" to the right, one syllable or letter at a time.
// Other text is divided into syllables, characters and bytes, so every byte string can be tokenized.
//
// The other kind is a WordPiece ("bert") vocabulary: whole words, and pieces that continue a word. A word that cannot be
// composed of them is one unknown token. There are no byte tokens, because such models read texts and write none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace uma {

struct Vocabulary {
  std::vector<std::string> texts;   // By token id.
  std::vector<float> scores;        // By token id; higher is merged first.
  std::vector<std::int32_t> types;  // By token id; llama_token_type.
  std::size_t plain_begin = 0;      // Tokens with smaller ids are control and byte tokens.
  [[nodiscard]] std::size_t size() const { return texts.size(); }
};

inline constexpr std::int32_t kTokenUnknown = 0;
inline constexpr std::int32_t kTokenBos = 1;
inline constexpr std::int32_t kTokenEos = 2;

// Control tokens beside <s> and </s>.
enum class Markers : std::uint8_t {
  none,
  chat,   // <|im_start|>, <|im_end|>
  image,  // <start_of_image>, <end_of_image>
  grid,   // <|vision_start|>, <|vision_end|>, <|image_pad|>
  gap,    // <|fim_prefix|>, <|fim_suffix|>, <|fim_middle|>, <|repo_name|>, <|file_sep|>
};

// Returns the size of the smallest vocabulary: control tokens, bytes, characters, syllables and a few hundred English words.
[[nodiscard]] std::size_t vocabulary_size_min(Markers markers);

// Fills up to `size` tokens with the words of words.h. Requires size >= vocabulary_size_min(markers) and size <=
// kWordsCountMax.
[[nodiscard]] Vocabulary make_vocabulary(std::size_t size, Markers markers);

inline constexpr std::int32_t kPiecePadding = 0;
inline constexpr std::int32_t kPieceUnknown = 1;
inline constexpr std::int32_t kPieceBegin = 2;
inline constexpr std::int32_t kPieceEnd = 3;
inline constexpr std::int32_t kPieceMask = 4;

// The vocabulary of word pieces: characters (also a few of other scripts), the same English words, endings and syllables.
[[nodiscard]] std::size_t word_pieces_size_min();
[[nodiscard]] Vocabulary make_word_pieces(std::size_t size);

}  // namespace uma
