// The text of one reply as it may be shown: whole characters, cut before the first stop string. What could still become a stop
// string is held back until it is clear.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "llm/detokenizer.h"

namespace uma::capability {

class TextStream {
 public:
  // `marks` are control tokens that have a text here (ReplyFormat).
  TextStream(const llm::Vocab& vocab, std::vector<std::string> stop_strings,
             std::vector<std::pair<Token, std::string>> marks = {});

  // Appends to `out` the text that `token` makes certain. True when a stop string is complete: the text ends before it.
  [[nodiscard]] bool push(Token token, std::string& out);
  // Appends what was held back to `out`: the reply ended without a stop string.
  void finish(std::string& out);

  // Of the text so far, with what is held back and what has been cut, but without an unfinished character.
  [[nodiscard]] std::size_t bytes_made() const { return made_; }
  // What has come and was not appended yet, without an unfinished character.
  [[nodiscard]] const std::string& held() const { return held_; }

 private:
  void push_text(Token token, std::string& out);
  [[nodiscard]] std::size_t possible_stop_length() const;

  llm::Detokenizer detokenizer_;
  std::vector<std::string> stop_strings_;
  std::vector<std::pair<Token, std::string>> marks_;
  std::size_t made_ = 0;
  std::string held_;  // shorter than the longest stop string, between calls
};

}  // namespace uma::capability
