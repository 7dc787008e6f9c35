#include "make_model/vocabulary.h"

#include <algorithm>
#include <array>
#include <format>
#include <string_view>
#include <unordered_set>

#include <llama.h>

#include "base/check.h"
#include "make_model/words.h"

namespace uma {

namespace {

constexpr std::string_view kSpace = "\u2581";  // How SentencePiece writes a space.

// Enough English for readable prompts in tests and demonstrations.
constexpr std::string_view kEnglishWords =
    "the of and to a in is it you that he was for on are with as his they be at one have this from or had by hot word but what "
    "some we can out other were all there when up use your how said an each she which do their time if will way about many "
    "then "
    "them write would like so these her long make thing see him two has look more day could go come did number sound no most "
    "people my over know water than call first who may down side been now find any new work part take get place made live "
    "where "
    "after back little only round man year came show every good me give our under name very through just form sentence great "
    "think say help low line differ turn cause much mean before move right boy old too same tell does set three want air well "
    "also play small end put home read hand port large spell add even land here must big high such follow act why ask men "
    "change "
    "went light kind off need house picture try us again animal point mother world near build self earth father once upon time "
    "girl lily dog cat story answer question hello short long user system assistant count";

// The tokenizer merges by score: syllables first, then beginnings of words.
constexpr float kScoreSyllable = -1.0F;
constexpr float kScoreWord = -1000.0F;
constexpr float kScoreCharacter = -1e6F;  // Merging starts with characters, so none is the result of a merge.

bool is_syllable(std::string_view text) {
  return text.size() >= 2 && kWordConsonants.contains(text[0]) && kWordVowels.contains(text[1]);
}

class VocabularyBuilder {
 public:
  explicit VocabularyBuilder(std::size_t size_max) : size_max_(size_max) {}

  void add(std::string text, float score, llama_token_type type) {
    if (is_full() || !seen_.insert(text).second) {
      return;
    }
    vocabulary_.texts.push_back(std::move(text));
    vocabulary_.scores.push_back(score);
    vocabulary_.types.push_back(type);
  }

  void add_plain(std::string text, float score) { add(std::move(text), score, LLAMA_TOKEN_TYPE_NORMAL); }

  // Adds "▁word" and the beginnings of it.
  void add_word(std::string_view word) {
    std::string text(kSpace);
    while (!word.empty()) {
      const std::size_t unit_bytes = is_syllable(word) ? 2 : 1;
      text += word.substr(0, unit_bytes);
      word.remove_prefix(unit_bytes);
      add_plain(text, kScoreWord - static_cast<float>(vocabulary_.size()));
    }
  }

  void end_of_special_tokens() { vocabulary_.plain_begin = vocabulary_.size(); }
  [[nodiscard]] bool is_full() const { return vocabulary_.size() == size_max_; }
  [[nodiscard]] std::size_t size() const { return vocabulary_.size(); }
  [[nodiscard]] Vocabulary take() { return std::move(vocabulary_); }

 private:
  std::size_t size_max_;
  Vocabulary vocabulary_;
  std::unordered_set<std::string> seen_;
};

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

void add_smallest(VocabularyBuilder& builder, Markers markers) {
  builder.add("<unk>", 0, LLAMA_TOKEN_TYPE_UNKNOWN);
  builder.add("<s>", 0, LLAMA_TOKEN_TYPE_CONTROL);
  builder.add("</s>", 0, LLAMA_TOKEN_TYPE_CONTROL);
  for (int byte = 0; byte < 256; ++byte) {
    builder.add(std::format("<0x{:02X}>", byte), 0, LLAMA_TOKEN_TYPE_BYTE);
  }
  if (markers == Markers::chat) {
    builder.add("<|im_start|>", 0, LLAMA_TOKEN_TYPE_CONTROL);
    builder.add("<|im_end|>", 0, LLAMA_TOKEN_TYPE_CONTROL);
  }
  if (markers == Markers::image) {
    builder.add("<start_of_image>", 0, LLAMA_TOKEN_TYPE_CONTROL);
    builder.add("<end_of_image>", 0, LLAMA_TOKEN_TYPE_CONTROL);
  }
  if (markers == Markers::grid) {
    for (const char* mark : {"<|vision_start|>", "<|vision_end|>", "<|image_pad|>"}) {
      builder.add(mark, 0, LLAMA_TOKEN_TYPE_CONTROL);
    }
  }
  if (markers == Markers::gap) {
    for (const char* mark : {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"}) {
      builder.add(mark, 0, LLAMA_TOKEN_TYPE_CONTROL);
    }
  }
  builder.end_of_special_tokens();

  builder.add_plain(std::string(kSpace), kScoreCharacter);
  for (char character = '!'; character <= '~'; ++character) {
    builder.add_plain(std::string(1, character), kScoreCharacter);
  }
  for (std::size_t index = 0; index < kSyllablesCount; ++index) {
    builder.add_plain(make_syllable(index), kScoreSyllable - static_cast<float>(index));
  }
  for (const std::string_view word : words_of(kEnglishWords)) {
    builder.add_word(word);
  }
}

// The tokenizer searches for the longest "▁word", then for the longest piece that continues it; it ignores scores. Before that
// it changes text to lower case and removes accents.
void add_smallest_pieces(VocabularyBuilder& builder) {
  builder.add("[PAD]", 0, LLAMA_TOKEN_TYPE_CONTROL);
  builder.add("[UNK]", 0, LLAMA_TOKEN_TYPE_UNKNOWN);
  builder.add("[CLS]", 0, LLAMA_TOKEN_TYPE_CONTROL);
  builder.add("[SEP]", 0, LLAMA_TOKEN_TYPE_CONTROL);
  builder.add("[MASK]", 0, LLAMA_TOKEN_TYPE_CONTROL);
  builder.end_of_special_tokens();
  for (char character = '!'; character <= '~'; ++character) {
    if (character >= 'A' && character <= 'Z') continue;
    builder.add_plain(std::string(kSpace) + character, 0);
    builder.add_plain(std::string(1, character), 0);
  }
  for (const std::string_view other : {"東", "語", "я", "ω"}) {
    builder.add_plain(std::string(kSpace) + std::string(other), 0);
    builder.add_plain(std::string(other), 0);
  }
  for (const std::string_view ending : words_of("ing ed er est ly ness tion al ment able")) {
    builder.add_plain(std::string(ending), 0);
  }
  for (std::size_t index = 0; index < kSyllablesCount; ++index) {
    builder.add_plain(make_syllable(index), 0);
  }
  for (const std::string_view word : words_of(kEnglishWords)) {
    builder.add_plain(std::string(kSpace) + std::string(word), 0);
  }
}

}  // namespace

std::size_t vocabulary_size_min(Markers markers) {
  VocabularyBuilder builder(kWordsCountMax);
  add_smallest(builder, markers);
  return builder.size();
}

Vocabulary make_vocabulary(std::size_t size, Markers markers) {
  UMA_CHECK(size >= vocabulary_size_min(markers) && size <= kWordsCountMax);
  VocabularyBuilder builder(size);
  add_smallest(builder, markers);
  for (std::size_t index = 0; !builder.is_full(); ++index) {
    builder.add_word(make_word(index));
  }
  return builder.take();
}

std::size_t word_pieces_size_min() {
  VocabularyBuilder builder(kWordsCountMax);
  add_smallest_pieces(builder);
  return builder.size();
}

Vocabulary make_word_pieces(std::size_t size) {
  UMA_CHECK(size >= word_pieces_size_min() && size <= kWordsCountMax);
  VocabularyBuilder builder(size);
  add_smallest_pieces(builder);
  for (std::size_t index = 0; !builder.is_full(); ++index) {
    builder.add_plain(std::string(kSpace) + make_word(index), 0);
  }
  return builder.take();
}

}  // namespace uma
