// A reply at a terminal, while it is written: lines end between words, and Markdown has weight and colour instead of its marks.
// Without colour it keeps its marks.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace uma::cli {

class ReplyView {
 public:
  // `columns`: the width of the terminal.
  ReplyView(std::size_t columns, bool has_colour);

  // Returns what is to be printed for the next piece of the reply: whole characters that are safe to print. The beginning of a
  // word that turns out to be too long for its line is moved to the next one.
  [[nodiscard]] std::string take(std::string_view text);
  // Returns what is to be printed at the end.
  [[nodiscard]] std::string end();

 private:
  struct Style {
    bool is_bold = false;
    bool is_code = false;
    bool is_fence = false;
    bool operator==(const Style&) const = default;
  };

  void put(std::string_view glyph);
  // Decides what the marks mean that were held back, now that `next` follows.
  void end_marks(std::string_view next);
  void show_all(std::string_view text);
  void show(std::string_view glyph);
  void break_line();
  void end_word();
  void end_line();
  void set_style(Style style);

  const std::size_t columns_;
  const bool has_colour_;
  std::string out_;
  std::string marks_;           // Equal marks whose number is not known yet.
  Style style_;                 // The next character has it.
  Style printed_;               // That the terminal has.
  bool is_in_block_ = false;    // Between two fences.
  bool is_after_blank_ = true;  // The last character was a blank or ended a line.
  bool is_line_start_ = true;   // Only blanks were shown in this line.
  std::size_t column_ = 0;
  std::string word_;              // The printed beginning of a word,
  std::size_t word_columns_ = 0;  // its width,
  Style word_style_;              // and the style with which it began.
};

// Whether the terminal knows no sequences, as TERM says.
[[nodiscard]] bool is_dumb_terminal();
// Whether the user wants colours: not with NO_COLOR.
[[nodiscard]] bool wants_colour();

}  // namespace uma::cli
