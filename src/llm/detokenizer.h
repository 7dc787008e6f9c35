// Turns tokens into text as they come, in whole UTF-8 characters only: the bytes of an unfinished character wait for the next
// token. Bytes that can never become a character come out as U+FFFD.
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
  // Appends what still waits for bytes that never came.
  void finish(std::string& out);

 private:
  const Vocab& vocab_;
  std::string pending_;  // at most 3 bytes between calls
};

}  // namespace uma::llm
