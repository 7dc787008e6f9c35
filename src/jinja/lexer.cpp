#include "jinja/lexer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <format>
#include <utility>

#include "base/utf8.h"
#include "jinja/value.h"

namespace uma::jinja {
namespace {

bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// "\r\n" and "\r" become "\n", and one line end at the very end is removed.
std::string with_unix_lines(std::string_view source) {
  std::string result;
  result.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      result += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      result += '\n';
    }
  }
  if (result.ends_with('\n')) result.pop_back();
  return result;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const std::size_t tag = find_tag(at_);
      const bool is_end = tag == std::string_view::npos;
      const std::string_view text = source_.substr(at_, is_end ? std::string_view::npos : tag - at_);
      if (is_end) {
        add_text(text);
        advance(text.size());
      } else {
        read_tag(text);
      }
    }
    add(Token::Kind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(std::string message) const { throw TemplateError{std::move(message), line_}; }

  std::size_t find_tag(std::size_t from) const {
    for (std::size_t i = source_.find('{', from); i != std::string_view::npos; i = source_.find('{', i + 1)) {
      if (i + 1 < source_.size() && (source_[i + 1] == '%' || source_[i + 1] == '{' || source_[i + 1] == '#')) return i;
    }
    return std::string_view::npos;
  }

  void add(Token::Kind kind, std::string value) { tokens_.push_back({kind, std::move(value), line_}); }
  void add_text(std::string_view text) {
    if (!text.empty()) add(Token::Kind::text, std::string(text));
  }

  bool sees(std::string_view text) const { return source_.substr(at_).starts_with(text); }

  // Advances, possibly over several lines. If the skipped part ends with a line, the next text begins one.
  void advance(std::size_t count) {
    const std::string_view passed = source_.substr(at_, count);
    line_ += static_cast<std::int32_t>(std::ranges::count(passed, '\n'));
    begins_line_ = passed.ends_with('\n');
    at_ += count;
  }
  void skip_blanks() {
    std::size_t end = at_;
    while (end < source_.size()) {
      char32_t character = 0;
      const std::size_t length = decode_code_point(source_.substr(end), character);
      if (!is_blank(character)) break;
      end += length;
    }
    if (end > at_) advance(end - at_);
  }

  static std::string_view without_blanks_behind(std::string_view text) {
    while (!text.empty()) {
      std::size_t last = text.size() - 1;
      while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
      char32_t character = 0;
      decode_code_point(text.substr(last), character);
      if (!is_blank(character)) break;
      text = text.substr(0, last);
    }
    return text;
  }

  // The text before a tag, after its sign and lstrip_blocks were applied.
  std::string_view stripped(std::string_view text, char sign, bool is_variable) const {
    if (sign == '-') return without_blanks_behind(text);
    if (sign == '+' || is_variable) return text;
    const std::size_t line = text.rfind('\n') == std::string_view::npos ? 0 : text.rfind('\n') + 1;
    const bool begins_line = line > 0 || begins_line_;
    return begins_line && without_blanks_behind(text.substr(line)).empty() ? text.substr(0, line) : text;
  }

  void read_tag(std::string_view text) {
    const std::size_t tag = at_ + text.size();
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    add_text(stripped(text, sign, kind == '{'));
    advance(text.size() + 2);
    if (sign == '-' || sign == '+') advance(1);
    switch (kind) {
      case '#':
        read_comment();
        break;
      case '%':
        if (!read_raw()) read_code(Token::Kind::block_begin, Token::Kind::block_end, "%}");
        break;
      default:
        read_code(Token::Kind::variable_begin, Token::Kind::variable_end, "}}");
    }
  }

  // Ends a block or a comment: `-` removes all following whitespace; otherwise the end of the line is removed, unless the sign
  // is `+`.
  void end_tag(char sign) {
    if (sign == '-') {
      skip_blanks();
    } else if (sign != '+' && sees("\n")) {
      advance(1);
    }
  }

  void read_comment() {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string_view::npos) fail("a comment is not closed by \"#}\"");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    advance(end + 2 - at_);
    end_tag(sign);
  }

  // The length of the rest of "{% NAME %}" at `at`, with its signs; 0 if the tag is another one.
  std::size_t simple_tag_length(std::size_t at, std::string_view name, char& sign) const {
    const std::size_t begin = at;
    const auto skip = [&] {
      while (at < source_.size() && (source_[at] == ' ' || source_[at] == '\t' || source_[at] == '\n')) ++at;
    };
    skip();
    if (!source_.substr(at).starts_with(name)) return 0;
    at += name.size();
    skip();
    sign = at < source_.size() ? source_[at] : '\0';
    if (sign == '-' || sign == '+') ++at;
    return source_.substr(at).starts_with("%}") ? at + 2 - begin : 0;
  }

  bool read_raw() {
    char sign = '\0';
    const std::size_t length = simple_tag_length(at_, "raw", sign);
    if (length == 0) return false;
    advance(length);
    if (sign == '-') skip_blanks();
    for (std::size_t tag = source_.find("{%", at_); tag != std::string_view::npos; tag = source_.find("{%", tag + 2)) {
      std::size_t inside = tag + 2;
      const char open_sign = inside < source_.size() ? source_[inside] : '\0';
      if (open_sign == '-' || open_sign == '+') ++inside;
      const std::size_t rest = simple_tag_length(inside, "endraw", sign);
      if (rest == 0) continue;
      add_text(stripped(source_.substr(at_, tag - at_), open_sign, false));
      advance(inside + rest - at_);
      end_tag(sign);
      return true;
    }
    fail("a raw block is not closed by \"{% endraw %}\"");
  }

  void read_code(Token::Kind begin, Token::Kind end, std::string_view closing) {
    add(begin, "");
    const bool is_variable = closing == "}}";
    std::string open;  // Open brackets.
    while (true) {
      skip_blanks();
      if (at_ == source_.size()) fail(std::format("a tag is not closed by \"{}\"", closing));
      if (open.empty()) {
        const char sign =
            (source_[at_] == '-' || source_[at_] == '+') && source_.substr(at_ + 1).starts_with(closing) ? source_[at_] : '\0';
        if (sign != '\0' || sees(closing)) {
          if (is_variable && sign == '+') fail("\"+}}\" is not valid");
          add(end, "");
          advance(closing.size() + (sign == '\0' ? 0 : 1));
          if (is_variable && sign != '-') return;
          end_tag(sign);
          return;
        }
      }
      read_token(open);
    }
  }

  void read_token(std::string& open) {
    const char first = source_[at_];
    std::size_t length = 1;
    if (begins_name(first)) {
      while (at_ + length < source_.size() && (begins_name(source_[at_ + length]) || is_digit(source_[at_ + length]))) ++length;
      add(Token::Kind::name, std::string(source_.substr(at_, length)));
    } else if (is_digit(first)) {
      return read_number();
    } else if (first == '\'' || first == '"') {
      return read_string();
    } else {
      constexpr std::array<std::string_view, 26> kSymbols = {"//", "**", "==", "!=", "<=", ">=", "+", "-", "*",
                                                             "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                                             "]",  "{",  "}",  ",",  ":",  ".",  "|", ";"};
      const auto symbol = std::ranges::find_if(kSymbols, [&](std::string_view text) { return sees(text); });
      if (symbol == kSymbols.end()) fail(std::format("unexpected character \"{}\"", printable(first)));
      length = symbol->size();
      if (first == '(' || first == '[' || first == '{') open += first;
      if (first == ')' || first == ']' || first == '}') {
        const char partner = first == ')' ? '(' : first == ']' ? '[' : '{';
        if (!open.ends_with(partner)) fail(std::format("unmatched \"{}\"", first));
        open.pop_back();
      }
      add(Token::Kind::symbol, std::string(*symbol));
    }
    advance(length);
  }

  static std::string printable(char c) {
    return c > ' ' && c < 0x7f ? std::string(1, c) : std::format("\\x{:02x}", static_cast<unsigned char>(c));
  }

  void read_number() {
    std::size_t end = at_;
    std::string digits;
    const auto take_digits = [&](auto accepts) {
      while (end < source_.size() &&
             (accepts(source_[end]) || (source_[end] == '_' && end + 1 < source_.size() && accepts(source_[end + 1])))) {
        if (source_[end] != '_') digits += source_[end];
        ++end;
      }
    };
    take_digits(is_digit);
    bool is_float = false;
    if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      is_float = true;
      digits += '.';
      ++end;
      take_digits(is_digit);
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      std::size_t power = end + 1;
      if (power < source_.size() && (source_[power] == '+' || source_[power] == '-')) ++power;
      if (power < source_.size() && is_digit(source_[power])) {
        is_float = true;
        digits += source_.substr(end, power - end);
        end = power;
        take_digits(is_digit);
      }
    }
    if (end < source_.size() && begins_name(source_[end]))
      fail(std::format("\"{}\" is not a number", source_.substr(at_, end + 1 - at_)));
    add(is_float ? Token::Kind::floating : Token::Kind::integer, std::move(digits));
    advance(end - at_);
  }

  // Escapes as in Python; an unknown escape stays unchanged.
  void read_string() {
    const char quote = source_[at_];
    std::string value;
    std::size_t i = at_ + 1;
    while (i < source_.size() && source_[i] != quote) {
      if (source_[i] != '\\' || i + 1 == source_.size()) {
        value += source_[i++];
        continue;
      }
      const char escape = source_[i + 1];
      i += 2;
      constexpr std::string_view kLetters = "ntrabfv\\'\"";
      constexpr std::string_view kMeanings = "\n\t\r\a\b\f\v\\'\"";
      if (const std::size_t letter = kLetters.find(escape); letter != std::string_view::npos) {
        value += kMeanings[letter];
      } else if (escape == '\n') {
        // The string continues on the next line.
      } else if (escape == 'x' || escape == 'u' || escape == 'U') {
        append_utf8(value, hexadecimal(i, escape == 'x' ? 2 : escape == 'u' ? 4 : 8));
      } else if (escape >= '0' && escape <= '7') {
        char32_t character = static_cast<char32_t>(escape - '0');
        for (int more = 0; more < 2 && i < source_.size() && source_[i] >= '0' && source_[i] <= '7'; ++more) {
          character = character * 8 + static_cast<char32_t>(source_[i++] - '0');
        }
        append_utf8(value, character);
      } else {
        value += '\\';
        value += escape;
      }
    }
    if (i >= source_.size()) fail("a string is not closed");
    add(Token::Kind::string, std::move(value));
    advance(i + 1 - at_);
  }

  char32_t hexadecimal(std::size_t& i, int digits) const {
    char32_t character = 0;
    for (; digits > 0; --digits, ++i) {
      const char c = i < source_.size() ? source_[i] : '\0';
      const int digit = is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
      if (digit < 0 || character > 0x10ffff) fail("an escape in a string needs hexadecimal digits");
      character = character * 16 + static_cast<char32_t>(digit);
    }
    if (character > 0x10ffff || (character >= 0xd800 && character <= 0xdfff)) fail("an escape in a string is not a character");
    return character;
  }

  std::string_view source_;
  std::size_t at_ = 0;
  std::int32_t line_ = 1;
  bool begins_line_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  const std::string text = with_unix_lines(source);
  return Lexer(text).run();
}

}  // namespace uma::jinja
