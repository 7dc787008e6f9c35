// The vocabulary of a made model: a SentencePiece ("llama") tokenizer that turns every word it holds into exactly one token.
//
// The tokenizer starts from single characters and keeps merging the two neighbours whose union is the token with the highest
// score. Two kinds of unions exist here, so that every word has exactly one path:
//   1. syllables ("ke"), with the higher scores: consonant + vowel, which never overlap;
//   2. beginnings of words ("▁ba", "▁bake", "▁bakedo"), which grow from "▁" to the right, one syllable or letter at a time.
// Text outside the words falls back to syllables, characters and bytes, so every byte string can be tokenized.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace uma {

struct Vocabulary {
  std::vector<std::string> texts;   // by token id
  std::vector<float> scores;        // by token id; higher is merged first
  std::vector<std::int32_t> types;  // by token id; llama_token_type
  std::size_t plain_begin = 0;      // tokens below are control and byte tokens
  [[nodiscard]] std::size_t size() const { return texts.size(); }
};

inline constexpr std::int32_t kTokenUnknown = 0;
inline constexpr std::int32_t kTokenBos = 1;
inline constexpr std::int32_t kTokenEos = 2;

// The smallest vocabulary there is: control tokens, bytes, characters, syllables and a few hundred English words.
[[nodiscard]] std::size_t vocabulary_size_min(bool with_chat_tokens);

// Fills up to `size` tokens with the words of words.h. With `with_chat_tokens` it holds <|im_start|> and <|im_end|>.
// Requires size >= vocabulary_size_min(with_chat_tokens) and size <= kWordsCountMax.
[[nodiscard]] Vocabulary make_vocabulary(std::size_t size, bool with_chat_tokens);

}  // namespace uma
