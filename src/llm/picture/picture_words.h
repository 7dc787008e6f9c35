// The words that a picture model knows, and how a caption becomes their numbers. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/error.h"

namespace uma::llm {

class PictureWords {
 public:
  // `words` begin with the pad and the beginning. A caption becomes `length` numbers.
  PictureWords(std::vector<std::string> words, std::int32_t length);

  // The beginning, the caption's words, and pads. A word is a run of ASCII letters and digits and of bytes above 127, in lower
  // case. Errors: E_PROTO_003 for a word that is not known, with the nearest known ones, or for too many words.
  [[nodiscard]] Expected<std::vector<std::int32_t>> encode(std::string_view caption) const;

 private:
  [[nodiscard]] std::string nearest(const std::string& word) const;

  const std::vector<std::string> words_;
  const std::size_t length_;
  std::unordered_map<std::string, std::int32_t> numbers_;
};

}  // namespace uma::llm
