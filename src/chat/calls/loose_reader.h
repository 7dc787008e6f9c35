// Reads the arguments of a call that are words, quoted texts, lists and dictionaries, as in Python: (a=1, b='x'),
// {a:1,b:<|"|>x<|"|>}.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "chat/calls/argument_reader.h"

namespace uma::chat {

// The arguments begin with their bracket.
class LooseReader final : public ArgumentReader {
 public:
  // `quote`: a mark around texts without escapes, beside the quotes of Python; may be empty. It must outlive the reader. The
  // first of the two marks may be missing, as models forget it.
  explicit LooseReader(std::string_view quote) : quote_(quote) {}

  [[nodiscard]] Result read(std::string_view& text, CallText& call) override;

 private:
  enum class Place : std::uint8_t { open, item, key, separator, value, next, string, word };
  enum class Step : std::uint8_t { taken, wait, complete, malformed };

  [[nodiscard]] Step step(std::string_view& text, std::string& json);
  [[nodiscard]] Step open(char bracket);
  [[nodiscard]] Step close(std::string& json);
  [[nodiscard]] Step begin_text(std::string_view& text, std::string& json);
  [[nodiscard]] Step take_string(std::string_view& text, std::string& json);
  [[nodiscard]] Step take_escape(std::string_view& text, std::string& json);
  [[nodiscard]] Step take_hex(std::string_view& text, std::string& json);
  [[nodiscard]] Step take_word(std::string_view& text, std::string& json);
  [[nodiscard]] Step take_text_without_quote(std::string_view& text, std::string& json);
  void take_pending(std::string& json);
  void begin_string(std::string& json);
  void end_text(std::string& json);
  // Where the current text goes.
  [[nodiscard]] std::string& text_of(std::string& json) { return is_key_ ? pending_ : json; }

  const std::string_view quote_;
  Place place_ = Place::open;
  std::string pending_;        // JSON that counts only if a value follows.
  std::string closers_;        // The closing brackets that are due.
  std::uint64_t is_list_ = 0;  // Bit 0: the innermost bracket is a list; bit 1: the one around it, and so on.
  bool needs_comma_ = false;   // Before the next item, if there is one.
  bool is_key_ = false;        // The text or word is a key.
  char end_quote_ = 0;         // 0: quote_ ends the text.
};

// The JSON of a list or dictionary in Python's notation; empty: it is none.
[[nodiscard]] std::optional<std::string> loose_json(std::string_view text);

}  // namespace uma::chat
