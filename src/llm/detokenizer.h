// Converts tokens to text in whole UTF-8 characters: the bytes of an unfinished character are held until the next token.
// Invalid bytes become U+FFFD.
#pragma once

#include <string>
#include <string_view>

#include "llm/model.h"

namespace uma::llm {

class Detokenizer {
 public:
  explicit Detokenizer(const Vocab& vocab) : vocab_(vocab) {}

  // Appends the characters that `token` completes to `out`.
  void push(Token token, std::string& out);
  // Appends U+FFFD for an unfinished character at the end of the text.
  void finish(std::string& out);
  [[nodiscard]] bool is_inside_character() const { return !pending_.empty(); }

 private:
  const Vocab& vocab_;
  std::string pending_;  // At most 3 bytes between calls.
};

}  // namespace uma::llm
