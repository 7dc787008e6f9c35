#include "chat/calls/element_reader.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "chat/calls/nested_elements.h"

namespace uma::chat {
namespace {

constexpr std::size_t kAttributeBytesMax = 256;
constexpr std::size_t kElementsMax = 1024;
constexpr std::string_view kNameInMark = "{name}";  // In ElementMarks::close.

// A name that may have quotes of either kind.
std::string_view without_quotes(std::string_view name) {
  const bool has_quotes = name.size() >= 2 && (name.front() == '"' || name.front() == '\'') && name.back() == name.front();
  return has_quotes ? name.substr(1, name.size() - 2) : name;
}

std::string_view without_indentation(std::string_view text) {
  return text.substr(0, text.find_last_not_of(" \t") + 1);
}

// The marks before the value of an element.
Pattern element_begin(const ElementMarks& marks) {
  const PatternPart open{PatternPart::Kind::text, marks.open};
  const PatternPart name{PatternPart::Kind::name, kNameInMark};
  const PatternPart end{PatternPart::Kind::text, marks.name_end};
  const PatternPart quote{PatternPart::Kind::text, "\""};
  return marks.quotes_name ? Pattern{open, quote, name, quote, end} : Pattern{open, name, end};
}

}  // namespace

ElementReader::ElementReader(const ElementMarks& marks, Pattern call_end, std::vector<std::string_view> ends,
                             const ParameterTypes* types)
    : marks_(marks),
      has_named_ends_(marks.close.contains(kNameInMark)),
      call_end_(std::move(call_end)),
      ends_(std::move(ends)),
      types_(types),
      next_element_(element_begin(marks)) {}

ArgumentReader::Result ElementReader::read(std::string_view& text, CallText& call) {
  for (;;) {
    if (is_in_value_) {
      if (!read_value(text, call, false)) return Result::more;
    } else if (const Result result = read_between(text, call); result != Result::more || !is_in_value_) {
      return result;
    }
  }
}

ArgumentReader::Result ElementReader::read_between(std::string_view& text, CallText& call) {
  text.remove_prefix(blanks_at_begin(text));
  if (text.empty()) return Result::more;
  bool may_go_on = false;
  for (const std::string_view end : ends_) {
    const Found found = begins_with(text, end);
    if (found == Found::yes) {
      call.arguments += call.arguments.empty() ? "{}" : "}";
      return Result::complete;
    }
    may_go_on = may_go_on || found == Found::maybe;
  }
  const Found element = count_ < kElementsMax ? begin_element(text, call) : Found::no;
  return element != Found::no || may_go_on ? Result::more : Result::malformed;
}

// Takes the marks before a value, once they are whole.
Found ElementReader::begin_element(std::string_view& text, CallText& call) {
  if (const Found open = begins_with(text, marks_.open); open != Found::yes) return open;
  std::string_view rest = text.substr(marks_.open.size());
  const MarkPlace name_end = find_mark(rest, marks_.name_end, kNameBytesMax);
  if (name_end.found != Found::yes) return name_end.found;
  std::string_view name = without_blanks(rest.substr(0, name_end.at));
  if (marks_.quotes_name) name = without_quotes(name);
  if (name.starts_with('/')) return Found::no;
  rest.remove_prefix(name_end.at + marks_.name_end.size());
  std::string_view attributes;
  if (!marks_.value_begin.empty()) {
    const MarkPlace value_begin = find_mark(rest, marks_.value_begin, kAttributeBytesMax);
    if (value_begin.found != Found::yes) return value_begin.found;
    attributes = rest.substr(0, value_begin.at);
    rest.remove_prefix(value_begin.at + marks_.value_begin.size());
  }
  begin_value(name, attributes, call);
  text = rest;
  return Found::yes;
}

void ElementReader::begin_value(std::string_view name, std::string_view attributes, CallText& call) {
  call.arguments += count_++ > 0 ? ", \"" : "{\"";
  append_json_text(call.arguments, name);
  call.arguments += "\": ";
  is_in_value_ = true;
  name_ = name;
  close_ = close_of(marks_, name);
  value_.clear();
  has_begun_ = false;
  has_skipped_ = false;
  blanks_ = 0;
  if (!marks_.text_attribute.empty()) {
    constexpr TypeSet kText{TypeSet::string};
    constexpr TypeSet kNoText{TypeSet::integer | TypeSet::number | TypeSet::boolean | TypeSet::null | TypeSet::array |
                              TypeSet::object};
    type_ = attributes.contains(marks_.text_attribute) ? kText : kNoText;
  } else {
    type_ = {};
    if (types_ != nullptr) {
      if (const auto found = types_->find(name); found != types_->end()) type_ = found->second;
    }
  }
  is_streamed_ = type_.is_text() && !type_.has(TypeSet::null);
  nested_open_.clear();
  if (has_nested_values(marks_, type_)) nested_open_.append(marks_.open).append(name).append(marks_.name_end);
  depth_ = 0;
}

// Whether the next element of a known parameter begins here, or the end of the call.
Found ElementReader::next_mark(std::string_view text) const {
  if (const Found end = match_head(call_end_, text, "").found; end != Found::no) return end;
  if (has_named_ends_) return Found::no;  // It is a part of the value.
  const CallHead element = match_head(next_element_, text, "");
  const bool is_unknown =
      element.found == Found::yes && types_ != nullptr && !types_->empty() && !types_->contains(element.name);
  return is_unknown ? Found::no : element.found;
}

// Skips the elements of the same name within the value.
ElementReader::End ElementReader::find_close(std::string_view text, std::size_t blanks) const {
  constexpr std::size_t kNone = std::string_view::npos;
  const auto find_open = [&](std::size_t from) { return nested_open_.empty() ? kNone : text.find(nested_open_, from); };
  std::size_t depth = depth_;
  std::size_t counted = blanks;  // The marks before it count.
  std::size_t open = find_open(counted);
  std::size_t close = text.find(close_, counted);
  while (open != kNone || close != kNone) {
    if (open < close) {
      ++depth;
      counted = open + nested_open_.size();
      open = find_open(counted);
      if (close < counted) close = text.find(close_, counted);
    } else {
      if (depth == 0) return {.found = Found::yes, .at = close, .mark_bytes = close_.size()};
      --depth;
      counted = close + close_.size();
      close = text.find(close_, counted);
      if (open < counted) open = find_open(counted);
    }
  }
  const std::string_view rest = text.substr(std::min(counted, text.size()));
  std::size_t begun = begun_at_end(rest, close_);
  if (!nested_open_.empty()) begun = std::max(begun, begun_at_end(rest, nested_open_));
  return {.found = Found::maybe, .at = text.size() - begun, .depth = depth};
}

// The mark of its end or, if that is missing, the next mark, which begins a line where the family writes lines.
ElementReader::End ElementReader::find_end(std::string_view text, std::size_t blanks) const {
  const End end = find_close(text, blanks);
  const char first = marks_.open.front();
  for (std::size_t at = text.find(first, blanks); at < end.at; at = text.find(first, at + 1)) {
    const std::size_t line = marks_.begins_line ? without_indentation(text.substr(0, at)).size() : at;
    const bool begins_line = !marks_.begins_line || (line > 0 ? text[line - 1] == '\n' : !has_begun_);
    if (!begins_line) continue;
    if (const Found found = next_mark(text.substr(at)); found != Found::no)
      return {.found = found, .at = line, .depth = find_close(text.substr(0, line), std::min(blanks, line)).depth};
  }
  return end;
}

// Removes the whitespace before a value, and returns its length.
std::size_t ElementReader::skip_begin(std::string_view& part) {
  if (has_begun_ || has_skipped_) return 0;
  if (marks_.keeps_blanks) return 0;
  const std::size_t skipped = marks_.trims_blanks ? blanks_at_begin(part) : part.starts_with('\n') ? 1 : 0;
  part.remove_prefix(skipped);
  has_skipped_ = !part.empty() || (!marks_.trims_blanks && skipped > 0);
  return skipped;
}

void ElementReader::add(std::string_view part, CallText& call) {
  if (is_streamed_) {
    if (!has_begun_) call.arguments += '"';
    append_json_text(call.arguments, part);
  } else {
    value_ += part;
  }
  has_begun_ = true;
}

// Adds what is decided of a value. At its end stands whitespace that may not belong to it, and perhaps the begin of a mark.
bool ElementReader::read_value(std::string_view& text, CallText& call, bool is_last) {
  const std::size_t blanks = std::exchange(blanks_, 0);
  const End end = find_end(text, blanks);
  std::string_view part = text.substr(0, end.at);
  const std::size_t skipped = skip_begin(part);
  const bool is_whole = end.found == Found::yes || is_last;
  std::string_view kept = part;
  if (marks_.trims_blanks) {
    kept = without_blanks_at_end(part, blanks);
  } else if (marks_.keeps_blanks) {
    // All of it is decided.
  } else if (is_whole) {
    if (part.ends_with('\n')) kept.remove_suffix(1);
  } else {
    // The line of the next mark may have begun.
    const std::size_t held = std::min(blanks, part.size());
    const std::string_view lines = without_indentation(part.substr(held));
    if (lines.empty() && (held > 0 || !has_begun_)) kept = {};
    if (lines.ends_with('\n')) kept = part.substr(0, held + lines.size() - 1);
  }
  if (!is_whole) {
    if (!kept.empty()) add(kept, call);
    text.remove_prefix(skipped + kept.size());
    blanks_ = part.size() - kept.size();
    depth_ = end.depth;
    return false;
  }
  add(kept, call);
  const auto nested = has_nested_values(marks_, type_) ? nested_json(marks_, value_, name_, types_) : std::nullopt;
  call.arguments += is_streamed_ ? "\"" : nested ? *nested : typed_json(value_, type_);
  text.remove_prefix(end.at + end.mark_bytes);
  is_in_value_ = false;
  return true;
}

bool ElementReader::finish(std::string_view rest, CallText& call) {
  if (is_in_value_) (void)read_value(rest, call, true);
  call.arguments += call.arguments.empty() ? "{}" : "}";
  return true;
}

}  // namespace uma::chat
