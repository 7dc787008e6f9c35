#include "chat/argument_reader.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/utf8.h"
#include "chat/call_pattern.h"
#include "jinja/json_reader.h"

namespace uma::chat {
namespace {

using Result = ArgumentReader::Result;

constexpr std::size_t kMemberBytesMax = 1024;  // A key or a name in an object around the arguments.
constexpr std::size_t kAttributeBytesMax = 256;
constexpr std::size_t kElementsMax = 1024;
constexpr std::size_t kLooseWordBytesMax = 1024;
constexpr std::size_t kLooseDepthMax = 30;
constexpr std::size_t kLookaheadBytesMax = 64;

// Appends a character of JSON as it stands, but control characters in strings, which models write, escaped.
void append_json_character(std::string& json, char c, bool is_in_string) {
  if (static_cast<unsigned char>(c) < 0x20 && is_in_string) return append_json_text(json, {&c, 1});
  json += c;
}

bool is_json_number(std::string_view text) {
  JsonScanner list;  // Only a bracket ends a number.
  (void)list.feed('[');
  const bool is_word = std::ranges::none_of(text, [&](char c) { return list.feed(c) == JsonScanner::Result::malformed; });
  return is_word && !text.empty() && list.place() == JsonScanner::Place::word &&
         list.feed(']') == JsonScanner::Result::complete;
}

}  // namespace

// --- JSON

Result JsonReader::read(std::string_view& text, CallText& call) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool is_in_string = scanner_.place() == JsonScanner::Place::string;
    const JsonScanner::Result result = scanner_.feed(c);
    if (result == JsonScanner::Result::malformed) {
      text.remove_prefix(i);
      return Result::malformed;
    }
    append_json_character(call.arguments, c, is_in_string);
    if (result == JsonScanner::Result::complete) {
      text.remove_prefix(i + 1);
      return Result::complete;
    }
  }
  text = {};
  return Result::more;
}

Result FunctionReader::read(std::string_view& text, CallText& call) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const Result result = take(text[i], call);
    if (result == Result::more) continue;
    text.remove_prefix(result == Result::complete ? i + 1 : i);
    return result;
  }
  text = {};
  return Result::more;
}

Result FunctionReader::take(char c, CallText& call) {
  const JsonScanner::Place before = scanner_.place();
  const bool is_outside = scanner_.depth() == 0;
  const JsonScanner::Result result = scanner_.feed(c);
  if (result == JsonScanner::Result::malformed) return Result::malformed;
  if (member_ == Member::arguments) {
    append_json_character(call.arguments, c, before == JsonScanner::Place::string);
    if (scanner_.place() == JsonScanner::Place::end_of_value && scanner_.depth() == 1) {
      has_arguments_ = true;
      member_ = Member::none;
    }
  } else if (!is_outside && !take_member(c, before, call)) {
    return Result::malformed;
  }
  if (result != JsonScanner::Result::complete) return Result::more;
  if (call.name.empty()) return Result::malformed;
  if (!has_arguments_) call.arguments = "{}";
  return Result::complete;
}

// Takes a character of the object around the arguments.
bool FunctionReader::take_member(char c, JsonScanner::Place before, CallText& call) {
  using Place = JsonScanner::Place;
  const Place place = scanner_.place();
  if (member_ != Member::none) return take_text(c, call);
  if (scanner_.depth() == 1 && place == Place::string && scanner_.is_key()) {
    member_ = Member::key;
    text_ = c;
    return true;
  }
  // The first character of a member's value.
  const bool is_object = before == Place::value && place == Place::first_key && scanner_.depth() == 2;
  const bool is_value = (before == Place::value && place != Place::value && scanner_.depth() == 1) || is_object ||
                        (before == Place::value && place == Place::first_value && scanner_.depth() == 2);
  if (!is_value) return true;
  if (key_ == "name" || key_ == "tool_name") {
    member_ = Member::name;
  } else if (key_ == "id" || key_ == "tool_call_id") {
    if (place == Place::string) member_ = Member::id;
  } else if (key_ == "arguments" || key_ == "parameters") {
    // Some models write the object as a string.
    if ((!is_object && place != Place::string) || has_arguments_) return false;
    member_ = is_object ? Member::arguments : Member::arguments_text;
    if (is_object) call.arguments = c;
  }
  if (member_ == Member::name && place != Place::string) return false;
  text_ = c;
  return true;
}

// Takes a character of a key, or of a value that is a string.
bool FunctionReader::take_text(char c, CallText& call) {
  using Place = JsonScanner::Place;
  text_ += c;
  if (text_.size() > kMemberBytesMax && member_ != Member::arguments_text) return false;
  const Place place = scanner_.place();
  if (place == Place::string || place == Place::escape || place == Place::hex) return true;
  const auto read = jinja::read_json(text_, jinja::kOtherInput);
  if (!read || read->as_text() == nullptr) return false;
  const std::string& value = read->as_text()->bytes();
  switch (std::exchange(member_, Member::none)) {
    case Member::key:
      key_ = value;
      return true;
    case Member::name:
      if (!is_function_name(value) || !call.name.empty()) return false;
      call.name = value;
      return true;
    case Member::id:
      if (value.size() <= kNameBytesMax) call.id = value;
      return true;
    case Member::arguments_text: {
      const auto arguments = jinja::read_json(value, jinja::kOtherInput);
      if (!arguments || arguments->as_dict() == nullptr) return false;
      call.arguments = value;
      has_arguments_ = true;
      return true;
    }
    case Member::none:
    case Member::arguments:
      break;
  }
  return false;
}

// --- elements

Result ElementReader::read(std::string_view& text, CallText& call) {
  for (;;) {
    bool is_changed = false;
    switch (state_) {
      case State::between:
        if (const Result result = read_between(text, call); result != Result::more || state_ == State::between) return result;
        is_changed = true;
        break;
      case State::name:
        if (text.find(marks_.name_end) == std::string_view::npos && text.size() > kAttributeBytesMax) return Result::malformed;
        is_changed = read_name(text, call);
        break;
      case State::attributes:
        if (text.find(marks_.value_begin) == std::string_view::npos && text.size() > kAttributeBytesMax)
          return Result::malformed;
        is_changed = read_attributes(text);
        break;
      case State::value:
        is_changed = read_value(text, call);
        break;
    }
    if (!is_changed) return Result::more;
  }
}

Result ElementReader::read_between(std::string_view& text, CallText& call) {
  text.remove_prefix(blanks_at_begin(text));
  if (text.empty()) return Result::more;
  const Found element = begins_with(text, marks_.open);
  if (element == Found::yes && count_ < kElementsMax) {
    text.remove_prefix(marks_.open.size());
    state_ = State::name;
    return Result::more;
  }
  bool may_end = element == Found::maybe;
  for (const std::string_view end : ends_) {
    const Found found = begins_with(text, end);
    if (found == Found::yes) {
      call.arguments += call.arguments.empty() ? "{}" : "}";
      return Result::complete;
    }
    may_end = may_end || found == Found::maybe;
  }
  return may_end ? Result::more : Result::malformed;
}

bool ElementReader::read_name(std::string_view& text, CallText& call) {
  const std::size_t end = text.find(marks_.name_end);
  if (end == std::string_view::npos) return false;
  std::string_view name = without_blanks(text.substr(0, end));
  if (marks_.quotes_name && name.size() >= 2 && (name.front() == '"' || name.front() == '\'') && name.back() == name.front())
    name = name.substr(1, name.size() - 2);
  text.remove_prefix(end + marks_.name_end.size());
  call.arguments += count_++ > 0 ? ", \"" : "{\"";
  append_json_text(call.arguments, name);
  call.arguments += "\": ";
  const auto found = types_ == nullptr ? ParameterTypes::const_iterator() : types_->find(name);
  type_ = types_ == nullptr || found == types_->end() ? TypeSet() : found->second;
  value_.clear();
  has_begun_ = false;
  is_streamed_ = type_.is_text() && !type_.has(TypeSet::null);
  state_ = marks_.value_begin.empty() ? State::value : State::attributes;
  return true;
}

bool ElementReader::read_attributes(std::string_view& text) {
  const std::size_t end = text.find(marks_.value_begin);
  if (end == std::string_view::npos) return false;
  const std::string_view attributes = text.substr(0, end);
  if (!marks_.text_attribute.empty() && attributes.contains(marks_.text_attribute)) {
    type_ = {TypeSet::string};
    is_streamed_ = true;
  } else if (!marks_.text_attribute.empty()) {
    is_streamed_ = false;
    // Whatever JSON it is.
    type_.bits = TypeSet::integer | TypeSet::number | TypeSet::boolean | TypeSet::null | TypeSet::array | TypeSet::object;
  }
  text.remove_prefix(end + marks_.value_begin.size());
  state_ = State::value;
  return true;
}

// Adds what is decided of a value. At its end stands whitespace that may not belong to it, and perhaps the begin of its mark.
bool ElementReader::read_value(std::string_view& text, CallText& call) {
  const auto add = [&](std::string_view part) {
    if (!is_streamed_) {
      value_ += part;
      return;
    }
    if (!has_begun_) call.arguments += '"';
    has_begun_ = true;
    append_json_text(call.arguments, part);
  };
  const bool is_first = is_streamed_ ? !has_begun_ : value_.empty();
  const std::size_t close = text.find(marks_.close);
  const bool is_whole = close != std::string_view::npos;
  std::string_view part = text.substr(0, is_whole ? close : text.size() - begun_at_end(text, marks_.close));
  const std::size_t end = is_whole ? close + marks_.close.size() : part.size();
  std::size_t skipped = 0;
  if (is_first && !has_skipped_) {
    skipped = marks_.trims_blanks ? blanks_at_begin(part) : part.starts_with('\n') ? 1 : 0;
    if (!marks_.trims_blanks && !part.empty()) has_skipped_ = true;
    part.remove_prefix(skipped);
    if (!part.empty()) has_skipped_ = true;
  }
  std::string_view kept = part;
  if (marks_.trims_blanks) {
    kept = without_blanks_at_end(part);
  } else if (part.ends_with('\n')) {
    kept.remove_suffix(1);
  }
  if (is_whole) {
    add(kept);
    if (is_streamed_) {
      call.arguments += '"';
    } else {
      call.arguments += typed_json(value_, type_);
    }
    text.remove_prefix(end);
    has_skipped_ = false;
    state_ = State::between;
    return true;
  }
  if (!kept.empty()) add(kept);
  text.remove_prefix(skipped + kept.size());
  return false;
}

bool ElementReader::finish(CallText& call) {
  if (state_ != State::between) return false;
  call.arguments += call.arguments.empty() ? "{}" : "}";
  return true;
}

// --- loose values

Result LooseReader::read(std::string_view& text, CallText& call) {
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
      text.remove_prefix(1);
      if (c == closers_.back()) return close(json);
      if (c != ',') return Step::malformed;
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
  const std::size_t next = text.find_first_not_of(" \t\r\n", 1);
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
  const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  if (digits > 0) {
    if (text.size() < 2 + digits) return Step::wait;
    std::uint32_t code = 0;
    const std::string_view hex = text.substr(2, digits);
    const auto [end, problem] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
    if (problem != std::errc() || end != hex.data() + hex.size()) return Step::malformed;
    const bool is_character = code < 0xd800 || (code > 0xdfff && code <= 0x10ffff);
    std::string character;
    append_utf8(character, is_character ? code : 0xfffd);
    append_json_text(json, character);
    text.remove_prefix(2 + digits);
    return Step::taken;
  }
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

LooseReader::Step LooseReader::take_word(std::string_view& text, std::string& json) {
  const std::size_t end = text.find_first_of(",:=()[]{}\n");
  if (end == std::string_view::npos) return text.size() > kLooseWordBytesMax ? Step::malformed : Step::wait;
  const std::string_view word = without_blanks_at_end(text.substr(0, end));
  if (word.empty() || word.size() > kLooseWordBytesMax) return Step::malformed;
  if (is_key_) {
    pending_ += '"';
    append_json_text(pending_, word);
    end_text(json);
  } else {
    take_pending(json);
    if (word == "True" || word == "true") {
      json += "true";
    } else if (word == "False" || word == "false") {
      json += "false";
    } else if (word == "None" || word == "null" || word == "none") {
      json += "null";
    } else if (is_json_number(word)) {
      json += word;
    } else {
      json += '"';
      append_json_text(json, word);
      json += '"';
    }
    place_ = Place::next;
  }
  text.remove_prefix(end);
  return Step::taken;
}

std::optional<std::string> loose_json(std::string_view text) {
  LooseReader reader("");
  CallText call;
  if (text.empty() || text.front() == '(') return std::nullopt;
  if (reader.read(text, call) != Result::complete || !text.empty()) return std::nullopt;
  return std::move(call.arguments);
}

}  // namespace uma::chat
