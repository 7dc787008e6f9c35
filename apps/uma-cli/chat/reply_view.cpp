#include "uma-cli/chat/reply_view.h"

#include <algorithm>
#include <cstdlib>
#include <format>
#include <utility>

#include "uma-cli/printable.h"

namespace uma::cli {
namespace {

constexpr std::size_t kTabColumns = 8;
constexpr std::size_t kHeadingMarksMax = 6;
constexpr std::size_t kFenceMarks = 3;

// The bytes of the first character.
std::string_view first_character(std::string_view text) {
  std::size_t bytes = 1;
  while (bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xC0U) == 0x80U) ++bytes;
  return text.substr(0, bytes);
}

bool is_blank(std::string_view glyph) {
  return glyph == " " || glyph == "\t";
}

}  // namespace

// A cursor behind the last column stands elsewhere on different terminals, so that column stays empty.
ReplyView::ReplyView(std::size_t columns, bool has_colour)
    : columns_(std::max<std::size_t>(columns, 2) - 1), has_colour_(has_colour) {}

std::string ReplyView::take(std::string_view text) {
  while (!text.empty()) {
    const std::string_view glyph = first_character(text);
    put(glyph);
    text.remove_prefix(glyph.size());
  }
  return std::exchange(out_, {});
}

std::string ReplyView::end() {
  end_marks("");
  set_style({});
  return std::exchange(out_, {});
}

void ReplyView::put(std::string_view glyph) {
  if (has_colour_) {
    const bool is_mark = glyph == "*" || glyph == "`" || (glyph == "#" && is_line_start_);
    if (!marks_.empty() && marks_.front() != glyph.front()) end_marks(glyph);
    if (is_mark) {
      marks_ += glyph;
      return;
    }
  }
  if (glyph == "\n") return end_line();
  show(glyph);
}

void ReplyView::end_marks(std::string_view next) {
  const std::string marks = std::exchange(marks_, {});
  if (marks.empty()) return;
  const char mark = marks.front();
  if (mark == '`' && is_line_start_ && marks.size() >= kFenceMarks) {
    is_in_block_ = !is_in_block_;
    style_ = {.is_fence = true};
    return show_all(marks);
  }
  // A fence that ends in its own line was none.
  if (mark == '`' && style_.is_fence && marks.size() >= kFenceMarks) is_in_block_ = false;
  if (is_in_block_ || style_.is_fence) return show_all(marks);
  if (mark == '#' && next == " " && marks.size() <= kHeadingMarksMax) style_.is_bold = true;
  if (mark == '`' && marks.size() < kFenceMarks) {
    style_.is_code = !style_.is_code;
  } else if (mark == '*' && marks.size() == 2 && !style_.is_code && !(style_.is_bold ? is_after_blank_ : is_blank(next))) {
    style_.is_bold = !style_.is_bold;
  } else {
    show_all(marks);
  }
}

void ReplyView::show_all(std::string_view text) {
  for (; !text.empty(); text.remove_prefix(1)) show(text.substr(0, 1));
}

void ReplyView::show(std::string_view glyph) {
  const std::size_t width = glyph == "\t" ? kTabColumns - column_ % kTabColumns : display_width(glyph);
  if (is_blank(glyph)) end_word();
  if (column_ + width > columns_ && !is_in_block_) {
    if (is_blank(glyph)) return void(column_ = columns_);  // The line ends with the next character.
    break_line();
  }
  if (word_.empty()) word_style_ = style_;
  const std::size_t before = out_.size();
  set_style(style_);
  out_ += glyph;
  column_ += width;
  is_after_blank_ = is_blank(glyph);
  is_line_start_ = is_line_start_ && is_blank(glyph);
  // Scripts with wide characters have no blanks between words.
  if (is_blank(glyph) || width > 1) {
    end_word();
  } else {
    word_ += std::string_view(out_).substr(before);
    word_columns_ += width;
  }
}

// The next character begins a new line, with the word to which it belongs, if that is not as long as the line.
void ReplyView::break_line() {
  const Style before = printed_;
  const bool moves_word = word_columns_ > 0 && word_columns_ < column_;
  if (moves_word) out_ += std::format("\x1b[{}D\x1b[K", word_columns_);
  set_style({});
  out_ += '\n';
  column_ = 0;
  if (!moves_word) return end_word();
  set_style(word_style_);
  out_ += word_;
  printed_ = before;
  column_ = word_columns_;
}

void ReplyView::end_word() {
  word_.clear();
  word_columns_ = 0;
}

void ReplyView::end_line() {
  set_style({});
  out_ += '\n';
  style_ = {.is_code = is_in_block_};
  is_line_start_ = is_after_blank_ = true;
  column_ = 0;
  end_word();
}

void ReplyView::set_style(Style style) {
  if (printed_ == style) return;
  printed_ = style;
  out_ += "\x1b[0m";
  if (style.is_bold) out_ += "\x1b[1m";
  if (style.is_code) out_ += "\x1b[36m";
  if (style.is_fence) out_ += "\x1b[2m";
}

bool is_dumb_terminal() {
  const char* const terminal = std::getenv("TERM");
  return terminal != nullptr && std::string_view(terminal) == "dumb";
}

bool wants_colour() {
  const char* const refused = std::getenv("NO_COLOR");
  return refused == nullptr || *refused == '\0';
}

}  // namespace uma::cli
