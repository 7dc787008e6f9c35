// The words of the bench: pronounceable, numbered, the same everywhere. make_model puts the first of them into its vocabularies
// as one token each, and uma-bench writes prompts of them, so the length of a prompt in tokens is known before it is sent.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace uma {

inline constexpr std::string_view kWordConsonants = "bcdfghjklmnpqrstvwxz";
inline constexpr std::string_view kWordVowels = "aeiou";
inline constexpr std::size_t kSyllablesCount = kWordConsonants.size() * kWordVowels.size();
inline constexpr std::size_t kWordsCountMax =
    kSyllablesCount + kSyllablesCount * kSyllablesCount + kSyllablesCount * kSyllablesCount * kSyllablesCount;

// One consonant and one vowel. Requires index < kSyllablesCount.
[[nodiscard]] std::string make_syllable(std::size_t index);

// First come all words of one syllable, then all of two, then those of three. Words of the same length with neighbouring
// numbers look different. All words differ, and a word without its last syllable is an earlier word. Requires index <
// kWordsCountMax.
[[nodiscard]] std::string make_word(std::size_t index);

}  // namespace uma
