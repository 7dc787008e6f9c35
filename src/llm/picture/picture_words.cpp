#include "llm/picture/picture_words.h"

#include <algorithm>
#include <cstddef>
#include <format>
#include <utility>

#include "base/check.h"
#include "base/edit_distance.h"
#include "base/utf8.h"

namespace uma::llm {
namespace {

constexpr std::int32_t kPad = 0;
constexpr std::int32_t kBegin = 1;
constexpr std::size_t kShownBytes = 32;  // Shown bytes of an unknown word.

bool belongs_to_word(unsigned char letter) {
  return letter > 127 || (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9');
}

std::vector<std::string> words_of(std::string_view caption) {
  std::vector<std::string> words;
  bool continues = false;
  for (const char each : caption) {
    const char letter = each >= 'A' && each <= 'Z' ? static_cast<char>(each - 'A' + 'a') : each;
    if (!belongs_to_word(static_cast<unsigned char>(letter))) {
      continues = false;
      continue;
    }
    if (!std::exchange(continues, true)) words.emplace_back();
    words.back() += letter;
  }
  return words;
}

}  // namespace

PictureWords::PictureWords(std::vector<std::string> words, std::int32_t length)
    : words_(std::move(words)), length_(static_cast<std::size_t>(length)) {
  UMA_CHECK(words_.size() > kBegin && length > 0);
  for (std::size_t i = kBegin + 1; i < words_.size(); ++i) numbers_.try_emplace(words_[i], static_cast<std::int32_t>(i));
}

Expected<std::vector<std::int32_t>> PictureWords::encode(std::string_view caption) const {
  std::vector<std::int32_t> numbers = {kBegin};
  const std::vector<std::string> words = words_of(caption);
  for (const std::string& word : words) {
    const auto known = numbers_.find(word);
    if (known == numbers_.end()) {
      std::string_view shown = std::string_view(word).substr(0, kShownBytes);
      shown.remove_suffix(incomplete_utf8_tail(shown));
      return fail(
          ErrorCode::proto_field,
          std::format("the model does not know the word \"{}\"; the nearest that it knows are {}", shown, nearest(word)));
    }
    numbers.push_back(known->second);
  }
  if (numbers.size() > length_) {
    return fail(ErrorCode::proto_field,
                std::format("the prompt has {} words, and the model reads {}: shorten it", words.size(), length_ - 1));
  }
  numbers.resize(length_, kPad);
  return numbers;
}

// The three words with the fewest edits; of equal ones the first.
std::string PictureWords::nearest(const std::string& word) const {
  constexpr std::size_t kShown = 3;
  const std::string_view compared = std::string_view(word).substr(0, kShownBytes);
  std::vector<std::pair<std::size_t, std::size_t>> order;
  for (std::size_t i = kBegin + 1; i < words_.size(); ++i) order.emplace_back(edit_distance(compared, words_[i]), i);
  const std::size_t shown = std::min(kShown, order.size());
  std::ranges::partial_sort(order, order.begin() + static_cast<std::ptrdiff_t>(shown));
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) text += (i == 0 ? "" : ", ") + words_[order[i].second];
  return text;
}

}  // namespace uma::llm
