#include "chat/calls/json_scanner.h"

#include <string_view>

namespace uma::chat {
namespace {

constexpr std::int32_t kJsonDepthMax = 32;
constexpr std::size_t kWordBytesMax = 400;

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_word_character(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || c == 'E' || c == '+' || c == '-' || c == '.';
}

void skip_digits(std::string_view& text) {
  while (!text.empty() && is_digit(text.front())) text.remove_prefix(1);
}

bool is_word(std::string_view text) {
  if (text == "true" || text == "false" || text == "null") return true;
  if (text.starts_with('-')) text.remove_prefix(1);
  if (text.empty() || !is_digit(text.front())) return false;
  if (text.front() == '0') {
    text.remove_prefix(1);
  } else {
    skip_digits(text);
  }
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    if (text.empty() || !is_digit(text.front())) return false;
    skip_digits(text);
  }
  if (text.starts_with('e') || text.starts_with('E')) {
    text.remove_prefix(1);
    if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
    if (text.empty() || !is_digit(text.front())) return false;
    skip_digits(text);
  }
  return text.empty();
}

}  // namespace

JsonScanner::Result JsonScanner::feed(char c) {
  switch (place_) {
    case Place::string:
      if (c == '\\') place_ = Place::escape;
      if (c != '"') return Result::more;
      if (!is_key_) return end_value();
      place_ = Place::colon;
      return Result::more;
    case Place::escape:
      if (!std::string_view("\"\\/bfnrtu").contains(c)) return Result::malformed;
      place_ = c == 'u' ? Place::hex : Place::string;
      hex_left_ = 4;
      return Result::more;
    case Place::hex:
      if (!is_digit(c) && (c < 'a' || c > 'f') && (c < 'A' || c > 'F')) return Result::malformed;
      if (--hex_left_ == 0) place_ = Place::string;
      return Result::more;
    case Place::word:
      if (is_word_character(c)) {
        word_ += c;
        return word_.size() <= kWordBytesMax ? Result::more : Result::malformed;
      }
      if (!is_word(word_)) return Result::malformed;
      (void)end_value();
      return feed(c);
    default:
      break;
  }
  if (is_blank(c)) return Result::more;
  switch (place_) {
    case Place::first_key:
      if (c == '}') return close(true);
      [[fallthrough]];
    case Place::key:
      is_key_ = true;
      place_ = Place::string;
      return c == '"' ? Result::more : Result::malformed;
    case Place::colon:
      place_ = Place::value;
      return c == ':' ? Result::more : Result::malformed;
    case Place::end_of_value:
      if (c == '}' || c == ']') return close(c == '}');
      place_ = is_in_object() ? Place::key : Place::value;
      return c == ',' ? Result::more : Result::malformed;
    case Place::first_value:
      if (c == ']') return close(false);
      [[fallthrough]];
    default:
      return begin_value(c);
  }
}

JsonScanner::Result JsonScanner::begin_value(char c) {
  if (c == '{' || c == '[') return open(c == '{');
  if (c == '"') {
    is_key_ = false;
    place_ = Place::string;
    return Result::more;
  }
  if (!is_word_character(c)) return Result::malformed;
  word_ = c;
  place_ = Place::word;
  return Result::more;
}

JsonScanner::Result JsonScanner::open(bool is_object) {
  if (depth_ == kJsonDepthMax) return Result::malformed;
  ++depth_;
  const std::uint64_t bit = std::uint64_t{1} << depth_;
  objects_ = is_object ? objects_ | bit : objects_ & ~bit;
  place_ = is_object ? Place::first_key : Place::first_value;
  return Result::more;
}

JsonScanner::Result JsonScanner::close(bool is_object) {
  if (is_in_object() != is_object) return Result::malformed;
  --depth_;
  return end_value();
}

JsonScanner::Result JsonScanner::end_value() {
  place_ = Place::end_of_value;
  return depth_ == 0 ? Result::complete : Result::more;
}

}  // namespace uma::chat
