#include "chat/calls/argument_reader.h"

#include <utility>

#include "chat/calls/call_pattern.h"
#include "chat/calls/parameter_types.h"
#include "jinja/json_reader.h"

namespace uma::chat {
namespace {

using Result = ArgumentReader::Result;

constexpr std::size_t kMemberBytesMax = 1024;  // A key or a name in an object around the arguments.

// Appends a character of JSON as it stands, but control characters in strings, which models write, escaped.
void append_json_character(std::string& json, char c, bool is_in_string) {
  if (static_cast<unsigned char>(c) < 0x20 && is_in_string) return append_json_text(json, {&c, 1});
  json += c;
}

}  // namespace

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

// --- a text

RawReader::RawReader(const ParameterTypes& types) : begin_("{\"") {
  append_json_text(begin_, types.size() == 1 ? std::string_view(types.begin()->first) : "code");
  begin_ += "\": \"";
}

Result RawReader::read(std::string_view& text, CallText& call) {
  if (!text.empty() && call.arguments.empty()) call.arguments = begin_;
  append_json_text(call.arguments, text);
  text = {};
  return Result::more;
}

bool RawReader::finish(std::string_view /*rest*/, CallText& call) {
  if (call.arguments.empty()) return false;
  call.arguments += "\"}";
  return true;
}

// --- an object with the name and the arguments

Result FunctionReader::read(std::string_view& text, CallText& call) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool was_whole = is_whole(call);
    const Result result = take(text[i], call);
    if (result == Result::more) continue;
    text.remove_prefix(result == Result::complete ? i + 1 : i);
    return was_whole ? Result::complete : result;
  }
  text = {};
  return Result::more;
}

bool FunctionReader::finish(std::string_view /*rest*/, CallText& call) {
  return is_whole(call);
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
  if (call.name.empty() || (needs_arguments_ && !has_arguments_)) return Result::malformed;
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
    // A call with a name and arguments may have been emitted.
    const bool is_early = waits_for_id_ || call.name.empty() || call.arguments.empty();
    if (place == Place::string && is_early) member_ = Member::id;
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

}  // namespace uma::chat
