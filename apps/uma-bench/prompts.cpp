#include "uma-bench/prompts.h"

#include "make_model/words.h"

namespace uma::bench {

namespace {

// Words of two syllables: every model of make_model with a large vocabulary has all of these words, and they keep requests
// short.
constexpr std::size_t kWordsBegin = kSyllablesCount;
constexpr std::size_t kWordsCount = kSyllablesCount * kSyllablesCount;

std::string pick_word(std::uint64_t number) {
  return make_word(kWordsBegin + static_cast<std::size_t>(number % kWordsCount));
}

void append_words(std::string& text, std::size_t words_count, Random& random) {
  for (std::size_t i = 0; i < words_count; ++i) {
    text += text.empty() ? "" : " ";
    text += pick_word(random.next_below(kWordsCount));
  }
}

}  // namespace

std::string PromptMaker::make_unique(std::size_t words_count) {
  if (words_count == 0) {
    return {};
  }
  std::string text = pick_word(seed_ + made_count_);
  ++made_count_;
  append_words(text, words_count - 1, random_);
  return text;
}

std::string PromptMaker::make_block(std::uint64_t block_id, std::size_t words_count) const {
  Random random(seed_ ^ (block_id * 0x9e3779b97f4a7c15ull));
  std::string text;
  append_words(text, words_count, random);
  return text;
}

}  // namespace uma::bench
