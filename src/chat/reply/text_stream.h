// The visible text of one reply: whole characters, cut before the first stop string. Text that may be the beginning of a stop
// string is held back.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llm/detokenizer.h"

namespace uma::chat {

class TextStream {
 public:
  // `marks` gives control tokens a text (ReplyFormat). `ends` are stop strings that count everywhere.
  TextStream(const llm::Vocab& vocab, std::vector<std::string> stop_strings,
             std::vector<std::pair<Token, std::string>> marks = {}, std::span<const std::string> ends = {});

  // Appends the newly decided text to `out`. True: a stop string is complete, and the text ends before it. `may_stop`:
  // all stop strings count here.
  [[nodiscard]] bool push(Token token, std::string& out, bool may_stop = true);
  // Appends the held text to `out`, at the end of a reply without a stop string.
  void finish(std::string& out);

  // Bytes of the whole text, including held and cut text, without an unfinished character.
  [[nodiscard]] std::size_t bytes_made() const { return made_; }
  // Text that is not appended yet, without an unfinished character.
  [[nodiscard]] const std::string& held() const { return held_; }
  [[nodiscard]] bool is_inside_character() const { return detokenizer_.is_inside_character(); }
  // The complete stop string; empty: there is none.
  [[nodiscard]] const std::string& stop_string() const { return stop_string_; }

 private:
  void push_text(Token token, std::string& out);
  [[nodiscard]] static std::size_t possible_stop_length(std::string_view held, std::span<const std::string> stops);

  llm::Detokenizer detokenizer_;
  std::vector<std::string> stop_strings_;  // Strings that count everywhere come first.
  std::size_t ends_;                       // Their number.
  std::vector<std::pair<Token, std::string>> marks_;
  std::size_t made_ = 0;
  std::string held_;  // Shorter than the longest stop string between calls.
  std::string stop_string_;
};

}  // namespace uma::chat
