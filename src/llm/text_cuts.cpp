#include "llm/text_cuts.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/utf8.h"

namespace uma::llm {
namespace {

bool is_blank(char c) {
  return std::isspace(static_cast<unsigned char>(c)) != 0;
}

}  // namespace

TextCuts::TextCuts(std::vector<Special> specials, std::optional<Characters> joined) : joined_(std::move(joined)) {
  std::erase_if(specials, [](const Special& special) { return special.text.empty(); });
  std::ranges::sort(specials, {}, &Special::text);
  for (Special& special : specials) {
    takes_blanks_ = takes_blanks_ || special.takes_blanks_before || special.takes_blanks_behind;
    begins_[static_cast<unsigned char>(special.text[0])] = true;
    if (specials_.empty() || specials_.back().text != special.text) {
      specials_.push_back(std::move(special));
      continue;
    }
    specials_.back().takes_blanks_before |= special.takes_blanks_before;
    specials_.back().takes_blanks_behind |= special.takes_blanks_behind;
  }
}

const TextCuts::Special* TextCuts::longest_at(std::string_view text, std::size_t at) const {
  if (!begins_[static_cast<unsigned char>(text[at])]) return nullptr;
  const Special* longest = nullptr;
  auto begin = specials_.begin();
  auto end = specials_.end();
  // The special tokens that have the next `length` bytes in common stand together, the shortest first.
  for (std::size_t length = 0; begin != end; ++length) {
    if (begin->text.size() == length) longest = &*begin++;
    if (at + length == text.size()) break;
    const auto byte_of = [length](const Special& special) { return static_cast<unsigned char>(special.text[length]); };
    const auto same = std::ranges::equal_range(begin, end, static_cast<unsigned char>(text[at + length]), {}, byte_of);
    begin = same.begin();
    end = same.end();
  }
  return longest;
}

bool TextCuts::is_alone(std::string_view text, std::size_t at) const {
  if (!joined_) return false;
  constexpr std::size_t kBytesMax = 4;
  for (std::size_t back = 1; back < std::min(kBytesMax, at + 1); ++back) {
    if (character_length(text[at - back]) > back) return false;  // It may be inside of an invalid one.
  }
  const std::string_view character = text.substr(at, character_length(text[at]));
  if (!is_utf8(character) || (takes_blanks_ && is_blank(character[0]))) return false;
  char32_t code_point = 0;
  (void)decode_code_point(character, code_point);
  return code_point >= joined_->size() || !(*joined_)[code_point];
}

bool TextCuts::is_certain(const Special& special, std::string_view text, std::size_t at) const {
  constexpr std::size_t kBytesMax = 256;  // Longer ones are not worth the look at what begins inside them.
  if (special.text.size() > kBytesMax) return false;
  if (takes_blanks_ && (is_blank(special.text.front()) || is_blank(special.text.back()))) return false;
  for (std::size_t inner = at + 1; inner < at + special.text.size(); ++inner) {
    const Special* other = longest_at(text, inner);
    if (other != nullptr && other != &special && other->text.size() >= special.text.size()) return false;
  }
  return true;
}

std::size_t TextCuts::next(std::string_view text, std::size_t from) const {
  std::size_t covered = 0;  // Special tokens that the library may find before `at` end here or before.
  for (std::size_t at = 0; at < text.size();) {
    const Special* special = longest_at(text, at);
    if (special == nullptr) {
      if (at > 0 && at >= from && covered <= at && is_alone(text, at)) return at;
      ++at;
      continue;
    }
    const std::size_t end = at + special->text.size();
    if (covered > at || !is_certain(*special, text, at)) {
      covered = std::max(covered, end);
      ++at;
      continue;
    }
    if (at > 0 && at >= from && !special->takes_blanks_before) return at;
    if (end >= from && !special->takes_blanks_behind) return end;
    at = end;
  }
  return text.size();
}

}  // namespace uma::llm
