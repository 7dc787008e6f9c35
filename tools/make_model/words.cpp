#include "make_model/words.h"

#include "base/check.h"

namespace uma {

std::string make_syllable(std::size_t index) {
  UMA_CHECK(index < kSyllablesCount);
  return {kWordConsonants[index / kWordVowels.size()], kWordVowels[index % kWordVowels.size()]};
}

std::string make_word(std::size_t index) {
  UMA_CHECK(index < kWordsCountMax);
  std::size_t syllables = 1;
  std::size_t words_count = kSyllablesCount;  // Words of this many syllables.
  while (index >= words_count) {
    index -= words_count;
    words_count *= kSyllablesCount;
    ++syllables;
  }
  // 7919 is a prime and no factor of a power of 100, so this permutes the words of one length.
  std::size_t rest = index * 7919 % words_count;
  std::string word;
  for (; syllables > 0; --syllables) {
    word += make_syllable(rest % kSyllablesCount);
    rest /= kSyllablesCount;
  }
  return word;
}

}  // namespace uma
