#include "chat/calls/loose_reader.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "chat/calls/call_pattern.h"
#include "chat/calls/json_scanner.h"
#include "chat/calls/parameter_types.h"

namespace uma::chat {
namespace {

constexpr std::size_t kLooseWordBytesMax = 1024;
constexpr std::size_t kLooseDepthMax = 30;
constexpr std::size_t kLookaheadBytesMax = 64;

bool is_json_number(std::string_view text) {
  JsonScanner list;  // Only a bracket ends a number.
  (void)list.feed('[');
  const bool is_word = std::ranges::none_of(text, [&](char c) { return list.feed(c) == JsonScanner::Result::malformed; });
  return is_word && !text.empty() && list.place() == JsonScanner::Place::word &&
         list.feed(']') == JsonScanner::Result::complete;
}

// The JSON of a word that is no text; empty: it is one.
std::string_view json_of_word(std::string_view word) {
  if (word == "True" || word == "true") return "true";
  if (word == "False" || word == "false") return "false";
  if (word == "None" || word == "null" || word == "none") return "null";
  return is_json_number(word) ? word : std::string_view();
}

// A number in hexadecimal digits.
struct Hex {
  Found found = Found::no;
  std::uint32_t value = 0;
};

Hex hex_at(std::string_view text, std::size_t digits) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < digits; ++i) {
    if (i == text.size()) return {.found = Found::maybe};
    const std::size_t digit = std::string_view("0123456789abcdefABCDEF").find(text[i]);
    if (digit == std::string_view::npos) return {.found = Found::no};
    value = value << 4 | static_cast<std::uint32_t>(digit < 16 ? digit : digit - 6);
  }
  return {.found = Found::yes, .value = value};
}

// Whether a key and its separator follow a comma.
Found key_follows(std::string_view text) {
  text.remove_prefix(blanks_at_begin(text));
  const std::size_t end = text.find_first_of(",:=()[]{}<>\n \t");
  if (end == std::string_view::npos) return text.size() > kLookaheadBytesMax ? Found::no : Found::maybe;
  return end > 0 && end <= kLookaheadBytesMax && (text[end] == ':' || text[end] == '=') ? Found::yes : Found::no;
}

}  // namespace

ArgumentReader::Result LooseReader::read(std::string_view& text, CallText& call) {
  while (!text.empty()) {
    switch (step(text, call.arguments)) {
      case Step::taken:
        break;
      case Step::wait:
        return Result::more;
      case Step::complete:
        return Result::complete;
      case Step::malformed:
        return Result::malformed;
    }
  }
  return Result::more;
}

LooseReader::Step LooseReader::step(std::string_view& text, std::string& json) {
  if (place_ == Place::string) return take_string(text, json);
  text.remove_prefix(blanks_at_begin(text));
  if (text.empty()) return Step::wait;
  const char c = text.front();
  switch (place_) {
    case Place::open:
      if (c != '(' && c != '{' && c != '[') return Step::malformed;
      text.remove_prefix(1);
      return open(c);
    case Place::item:
      if (c == closers_.back()) {
        text.remove_prefix(1);
        return close(json);
      }
      if (needs_comma_) pending_ += ", ";
      needs_comma_ = false;
      place_ = closers_.back() == ']' ? Place::value : Place::key;
      return Step::taken;
    case Place::key:
      is_key_ = true;
      return begin_text(text, json);
    case Place::separator:
      if (c != ':' && c != '=') return Step::malformed;
      text.remove_prefix(1);
      pending_ += ": ";
      place_ = Place::value;
      return Step::taken;
    case Place::value:
      is_key_ = false;
      if (c != '{' && c != '[' && c != '(') return begin_text(text, json);
      text.remove_prefix(1);
      return open(c);
    case Place::next:
      if (c != closers_.back() && c != ',') return Step::malformed;
      text.remove_prefix(1);
      if (c == closers_.back()) return close(json);
      needs_comma_ = true;
      place_ = Place::item;
      return Step::taken;
    case Place::string:
    case Place::word:
      break;
  }
  return take_word(text, json);
}

// Behind an opening bracket. The arguments of a call and a dictionary become an object, all else a list.
LooseReader::Step LooseReader::open(char bracket) {
  if (closers_.size() == kLooseDepthMax) return Step::malformed;
  const bool is_list = bracket == '[' || (bracket == '(' && !closers_.empty());
  pending_ += is_list ? '[' : '{';
  closers_ += bracket == '(' ? ')' : bracket == '{' ? '}' : ']';
  is_list_ = (is_list_ << 1) | (is_list ? 1u : 0u);
  needs_comma_ = false;
  place_ = Place::item;
  return Step::taken;
}

LooseReader::Step LooseReader::close(std::string& json) {
  take_pending(json);
  json += (is_list_ & 1u) != 0 ? ']' : '}';
  closers_.pop_back();
  is_list_ >>= 1;
  needs_comma_ = false;
  place_ = Place::next;
  return closers_.empty() ? Step::complete : Step::taken;
}

// A key or value that is a text or a word.
LooseReader::Step LooseReader::begin_text(std::string_view& text, std::string& json) {
  if (!quote_.empty()) {
    const Found found = begins_with(text, quote_);
    if (found == Found::maybe) return Step::wait;
    if (found == Found::yes) {
      text.remove_prefix(quote_.size());
      end_quote_ = 0;
      begin_string(json);
      return Step::taken;
    }
  }
  if (const char c = text.front(); c == '"' || c == '\'') {
    text.remove_prefix(1);
    end_quote_ = c;
    begin_string(json);
    return Step::taken;
  }
  place_ = Place::word;
  return Step::taken;
}

void LooseReader::take_pending(std::string& json) {
  json += pending_;
  pending_.clear();
}

void LooseReader::begin_string(std::string& json) {
  if (!is_key_) take_pending(json);
  text_of(json) += '"';
  place_ = Place::string;
}

void LooseReader::end_text(std::string& json) {
  text_of(json) += '"';
  place_ = is_key_ ? Place::separator : Place::next;
}

LooseReader::Step LooseReader::take_string(std::string_view& text, std::string& whole) {
  std::string& json = text_of(whole);
  if (end_quote_ == 0) {
    const std::size_t end = text.find(quote_);
    const bool is_whole = end != std::string_view::npos;
    const std::size_t length = is_whole ? end : text.size() - begun_at_end(text, quote_);
    append_json_text(json, text.substr(0, length));
    text.remove_prefix(is_whole ? end + quote_.size() : length);
    if (!is_whole) return Step::wait;
    end_text(whole);
    return Step::taken;
  }
  const char stops[] = {end_quote_, '\\', '\0'};
  const std::size_t plain = std::min(text.find_first_of(stops), text.size());
  append_json_text(json, text.substr(0, plain));
  text.remove_prefix(plain);
  if (text.empty()) return Step::taken;
  if (text.front() == '\\') return take_escape(text, whole);
  // A quote that nothing follows that may follow a text belongs to it: models do not always escape them.
  const std::size_t next = text.substr(0, kLookaheadBytesMax + 1).find_first_not_of(" \t\r\n", 1);
  if (next == std::string_view::npos && text.size() <= kLookaheadBytesMax) return Step::wait;
  const bool is_end = next == std::string_view::npos || std::string_view(",)]}:=").contains(text[next]);
  if (!is_end) append_json_text(json, text.substr(0, 1));
  text.remove_prefix(1);
  if (is_end) end_text(whole);
  return Step::taken;
}

LooseReader::Step LooseReader::take_escape(std::string_view& text, std::string& whole) {
  std::string& json = text_of(whole);
  if (text.size() < 2) return Step::wait;
  const char c = text[1];
  if (c == 'x' || c == 'u' || c == 'U') return take_hex(text, json);
  constexpr std::string_view kNames = "ntrbf\\'\"/";
  constexpr std::string_view kValues = "\n\t\r\b\f\\'\"/";
  const std::size_t known = kNames.find(c);
  if (known != std::string_view::npos) {
    append_json_text(json, kValues.substr(known, 1));
    text.remove_prefix(2);
  } else {
    append_json_text(json, "\\");
    text.remove_prefix(1);
  }
  return Step::taken;
}

// Takes \x41, \u0041, \U00000041, or a pair of surrogates. What is none is a backslash: models write paths so.
LooseReader::Step LooseReader::take_hex(std::string_view& text, std::string& json) {
  const std::size_t digits = text[1] == 'x' ? 2 : text[1] == 'u' ? 4 : 8;
  const Hex hex = hex_at(text.substr(2), digits);
  if (hex.found == Found::maybe) return Step::wait;
  if (hex.found == Found::no) {
    append_json_text(json, "\\");
    text.remove_prefix(1);
    return Step::taken;
  }
  std::size_t length = 2 + digits;
  std::uint32_t code = hex.value;
  if (code >= 0xd800 && code < 0xdc00) {
    const std::string_view next = text.substr(length);
    const Found has_mark = begins_with(next, "\\u");
    const Hex low = has_mark == Found::yes ? hex_at(next.substr(2), 4) : Hex{.found = has_mark};
    if (low.found == Found::maybe) return Step::wait;
    if (low.found == Found::yes && low.value >= 0xdc00 && low.value < 0xe000) {
      code = 0x10000 + ((code - 0xd800) << 10) + (low.value - 0xdc00);
      length += 6;
    }
  }
  const bool is_character = code < 0xd800 || (code > 0xdfff && code <= 0x10ffff);
  std::string character;
  append_utf8(character, is_character ? code : 0xfffd);
  append_json_text(json, character);
  text.remove_prefix(length);
  return Step::taken;
}

LooseReader::Step LooseReader::take_word(std::string_view& text, std::string& json) {
  const std::size_t end = text.find_first_of(",:=()[]{}\n");
  const bool has_end = end != std::string_view::npos;
  const std::string_view word = without_blanks_at_end(text.substr(0, end));
  const std::string_view value = has_end && !is_key_ ? json_of_word(word) : std::string_view();
  if (!quote_.empty() && !is_key_ && value.empty()) return take_text_without_quote(text, json);
  if (std::min(end, text.size()) > kLooseWordBytesMax) return Step::malformed;
  if (!has_end) return Step::wait;
  if (word.empty()) return Step::malformed;
  if (is_key_) {
    pending_ += '"';
    append_json_text(pending_, word);
    end_text(json);
  } else {
    take_pending(json);
    if (value.empty()) {
      json += '"';
      append_json_text(json, word);
      json += '"';
    } else {
      json += value;
    }
    place_ = Place::next;
  }
  text.remove_prefix(end);
  return Step::taken;
}

// Takes a text up to quote_. If this mark is missing too, it ends before a bracket, or before a comma that a key follows; in a
// list before any comma.
LooseReader::Step LooseReader::take_text_without_quote(std::string_view& text, std::string& json) {
  const MarkPlace quote = find_mark(text, quote_, kLooseWordBytesMax);
  std::size_t end = quote.at;
  Found found = quote.found;
  const std::size_t limit = std::min(quote.at, kLooseWordBytesMax);
  for (std::size_t at = text.find_first_of(",]})"); at < limit; at = text.find_first_of(",]})", at + 1)) {
    Found ends = text[at] == closers_.back() ? Found::yes : Found::no;
    if (text[at] == ',') ends = closers_.back() == ']' ? Found::yes : key_follows(text.substr(at + 1));
    if (ends == Found::no) continue;
    end = at;
    found = ends;
    break;
  }
  if (found != Found::yes) return found == Found::no ? Step::malformed : Step::wait;
  const std::string_view word = without_blanks_at_end(text.substr(0, end));
  if (word.empty()) return Step::malformed;
  take_pending(json);
  json += '"';
  append_json_text(json, word);
  json += '"';
  place_ = Place::next;
  text.remove_prefix(end == quote.at ? end + quote_.size() : end);
  return Step::taken;
}

std::optional<std::string> loose_json(std::string_view text) {
  LooseReader reader("");
  CallText call;
  if (text.empty() || text.front() == '(') return std::nullopt;
  if (reader.read(text, call) != ArgumentReader::Result::complete || !text.empty()) return std::nullopt;
  return std::move(call.arguments);
}

}  // namespace uma::chat
