#include "chat/reply_parser.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "base/random.h"
#include "jinja/json_reader.h"
#include "jinja/value.h"

namespace uma::chat {
namespace {

constexpr std::size_t kIntroBytesMax = 1024;
constexpr std::size_t kNameBytesMax = 256;
constexpr std::size_t kParsedCallsMax = 128;

constexpr std::string_view kTaggedEnd = "</tool_call>";
constexpr std::string_view kCallBegin = "<｜tool▁call▁begin｜>";
constexpr std::string_view kCallEnd = "<｜tool▁call▁end｜>";
constexpr std::string_view kCallsEnd = "<｜tool▁calls▁end｜>";
constexpr std::string_view kSeparator = "<｜tool▁sep｜>";

constexpr std::string_view kBlanks = " \t\r\n";

std::size_t blanks_at_begin(std::string_view text) {
  return std::min(text.find_first_not_of(kBlanks), text.size());
}
std::string_view without_blanks_at_end(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

// The bytes at the end of `text` that may be the beginning of `mark`.
std::size_t begun_at_end(std::string_view text, std::string_view mark) {
  for (std::size_t length = std::min(mark.size() - 1, text.size()); length > 0; --length) {
    if (text.ends_with(mark.substr(0, length))) return length;
  }
  return 0;
}

// The mark before a call.
std::string_view opening_mark(CallSyntax syntax) {
  switch (syntax) {
    case CallSyntax::tagged:
      return "<tool_call>";
    case CallSyntax::llama3:
      return "<|python_tag|>";
    case CallSyntax::mistral:
      return "[TOOL_CALLS]";
    case CallSyntax::deepseek:
      return "<｜tool▁calls▁begin｜>";
    case CallSyntax::none:
      break;
  }
  return "";
}

// Nine letters and digits, the form that the strictest template takes.
std::string call_id(std::uint64_t seed, std::size_t call) {
  constexpr std::string_view kCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  Random random(seed + call);
  std::string id(9, ' ');
  for (char& c : id) c = kCharacters[random.next_below(kCharacters.size())];
  return id;
}

// Escapes a control character that the model wrote unescaped in a JSON string.
void append_escaped(std::string& out, char control) {
  constexpr std::string_view kHex = "0123456789abcdef";
  const auto value = static_cast<unsigned char>(control);
  out += "\\u00";
  out += kHex[value >> 4];
  out += kHex[value & 0xf];
}

}  // namespace

void ReplyPieces::clear() {
  before.clear();
  content.clear();
  content_places.clear();
  after.clear();
}

ReplyParser::ReplyParser(ReplyFormat format, std::uint64_t seed)
    : format_(std::move(format)),
      seed_(seed),
      state_(format_.begins_with_reasoning    ? State::reasoning
             : format_.reasoning_open.empty() ? State::content
                                              : State::start),
      skips_blanks_(format_.begins_with_reasoning) {}

void ReplyParser::push(std::string_view text, ReplyPieces& out) {
  held_ += text;
  pushed_ += text.size();
  while (step(out)) {
  }
  flush_arguments(out);
}

// Takes text in the current state. True: the state changed, call again.
bool ReplyParser::step(ReplyPieces& out) {
  switch (state_) {
    case State::start:
      return step_start();
    case State::reasoning:
      return step_reasoning(out);
    case State::content:
      return step_content(out);
    case State::intro:
      return step_intro(out);
    case State::body:
      return step_body(out);
    case State::after_call:
      break;
  }
  return step_after_call();
}

bool ReplyParser::step_start() {
  const std::size_t blanks = blanks_at_begin(held_);
  const std::string_view rest = std::string_view(held_).substr(blanks);
  if (format_.reasoning_open.starts_with(rest) && rest.size() < format_.reasoning_open.size()) return false;
  if (rest.starts_with(format_.reasoning_open)) {
    held_.erase(0, blanks + format_.reasoning_open.size());
    state_ = State::reasoning;
    skips_blanks_ = true;
  } else {
    state_ = State::content;
  }
  return true;
}

bool ReplyParser::step_reasoning(ReplyPieces& out) {
  if (skips_blanks_) {
    held_.erase(0, blanks_at_begin(held_));
    if (held_.empty()) return false;
    skips_blanks_ = false;
  }
  const std::string_view held = held_;
  const std::size_t end = held.find(format_.reasoning_close);
  const bool is_over = end != std::string_view::npos;
  const std::string_view reasoning =
      without_blanks_at_end(held.substr(0, is_over ? end : held.size() - begun_at_end(held, format_.reasoning_close)));
  add_reasoning(reasoning, out);
  held_.erase(0, is_over ? end + format_.reasoning_close.size() : reasoning.size());
  if (!is_over) return false;
  state_ = State::content;
  skips_blanks_ = true;
  return true;
}

bool ReplyParser::finds_calls() const {
  return format_.calls != CallSyntax::none && calls_.size() < kParsedCallsMax;
}

bool ReplyParser::step_content(ReplyPieces& out) {
  if (skips_blanks_) {
    held_.erase(0, blanks_at_begin(held_));
    if (held_.empty()) return false;
    skips_blanks_ = false;
  }
  if (!finds_calls()) {
    add_content(held_, out, taken());
    held_.clear();
    return false;
  }
  if (is_at_start_ && format_.calls == CallSyntax::llama3) {
    const std::size_t blanks = blanks_at_begin(held_);
    if (blanks == held_.size()) return false;
    if (held_[blanks] == '{') {
      call_text_.clear();
      mark_bytes_ = 0;
      begin_call({.found = Found::yes, .length = blanks});
      return true;
    }
  }
  const std::string_view held = held_;
  const std::string_view mark = opening_mark(format_.calls);
  const std::size_t at = held.find(mark);
  const bool is_call = at != std::string_view::npos;
  // Whitespace before a call is dropped.
  const std::string_view content = without_blanks_at_end(held.substr(0, is_call ? at : held.size() - begun_at_end(held, mark)));
  add_content(content, out, taken());
  const std::size_t end = is_call ? at + mark.size() : content.size();
  if (is_call) {
    call_text_ = held.substr(content.size(), end - content.size());
    mark_bytes_ = call_text_.size();
    state_ = State::intro;
  }
  held_.erase(0, end);
  return is_call;
}

bool ReplyParser::step_intro(ReplyPieces& out) {
  const Intro intro = read_intro();
  if (intro.found == Found::maybe && held_.size() <= kIntroBytesMax) return false;
  if (intro.found == Found::yes && intro.length <= kIntroBytesMax) {
    begin_call(intro);
  } else {
    give_up_call(out);
  }
  return true;
}

ReplyParser::Intro ReplyParser::read_intro() const {
  const std::size_t blanks = blanks_at_begin(held_);
  if (format_.calls == CallSyntax::mistral) return read_mistral_intro(blanks);
  if (format_.calls == CallSyntax::deepseek) return read_deepseek_intro(blanks);
  if (blanks == held_.size()) return {.found = Found::maybe};
  return {.found = held_[blanks] == '{' ? Found::yes : Found::no, .length = blanks};
}

// Forms: "[{", "{", "name[ARGS]{", "name[CALL_ID]id[ARGS]{", "name{".
ReplyParser::Intro ReplyParser::read_mistral_intro(std::size_t blanks) const {
  constexpr std::string_view kCallId = "[CALL_ID]";
  constexpr std::string_view kArguments = "[ARGS]";
  std::string_view rest = std::string_view(held_).substr(blanks);
  const auto yes_at_brace = [&](Intro intro) -> Intro {
    rest.remove_prefix(blanks_at_begin(rest));
    if (rest.empty()) return {.found = Found::maybe};
    intro.found = rest.front() == '{' ? Found::yes : Found::no;
    intro.length = held_.size() - rest.size();
    return intro;
  };
  if (rest.empty() || rest.front() == '{') return yes_at_brace({});
  if (rest.front() == '[') {
    rest.remove_prefix(1);
    return yes_at_brace({.is_list = true});
  }
  const std::size_t name_end = rest.find_first_of(" \t\r\n[{");
  if (name_end == std::string_view::npos) return {.found = rest.size() <= kNameBytesMax ? Found::maybe : Found::no};
  Intro intro{.name = std::string(rest.substr(0, name_end))};
  if (name_end > kNameBytesMax) return {};
  rest.remove_prefix(name_end);
  rest.remove_prefix(blanks_at_begin(rest));
  if (!rest.starts_with('[')) return yes_at_brace(std::move(intro));
  const bool may_be_either = (kCallId.starts_with(rest) && rest.size() < kCallId.size()) ||
                             (kArguments.starts_with(rest) && rest.size() < kArguments.size());
  if (may_be_either) return {.found = Found::maybe};
  if (rest.starts_with(kCallId)) {
    const std::size_t arguments = rest.find(kArguments);
    if (arguments == std::string_view::npos) return {.found = Found::maybe};
    rest.remove_prefix(arguments);
  }
  if (!rest.starts_with(kArguments)) return {};
  rest.remove_prefix(kArguments.size());
  return yes_at_brace(std::move(intro));
}

// Forms: the mark of one call, "function", a separator, the name and a line with ```json; or the mark, the name and the
// separator.
ReplyParser::Intro ReplyParser::read_deepseek_intro(std::size_t blanks) const {
  constexpr std::string_view kFence = "```json";
  std::string_view rest = std::string_view(held_).substr(blanks);
  if (kCallBegin.starts_with(rest) && rest.size() < kCallBegin.size()) return {.found = Found::maybe};
  if (!rest.starts_with(kCallBegin)) return {};
  rest.remove_prefix(kCallBegin.size());
  const std::size_t separator = rest.find(kSeparator);
  if (separator == std::string_view::npos) return {.found = Found::maybe};
  Intro intro{.name = std::string(rest.substr(0, separator))};
  rest.remove_prefix(separator + kSeparator.size());
  if (intro.name == "function") {
    const std::size_t line_end = rest.find('\n');
    if (line_end == std::string_view::npos) return {.found = Found::maybe};
    intro.name = std::string(rest.substr(0, line_end));
    rest.remove_prefix(line_end);
  }
  rest.remove_prefix(blanks_at_begin(rest));
  if (rest.starts_with(kFence)) {
    rest.remove_prefix(kFence.size());
  } else if (kFence.starts_with(rest)) {
    return {.found = Found::maybe};
  }
  rest.remove_prefix(blanks_at_begin(rest));
  if (rest.empty()) return {.found = Found::maybe};
  const bool is_name = !intro.name.empty() && intro.name.size() <= kNameBytesMax && !intro.name.contains('<');
  intro.found = is_name && rest.front() == '{' ? Found::yes : Found::no;
  intro.length = held_.size() - rest.size();
  return intro;
}

void ReplyParser::begin_call(const Intro& intro) {
  call_text_.append(held_, 0, intro.length);
  held_.erase(0, intro.length);
  state_ = State::body;
  is_in_list_ = intro.is_list;
  is_emitted_ = false;
  scanner_ = {};
  name_ = intro.name;
  is_arguments_alone_ = !intro.name.empty();
  member_ = is_arguments_alone_ ? Member::arguments : Member::none;
  is_body_complete_ = false;
  has_arguments_ = false;
  arguments_.clear();
  arguments_emitted_ = 0;
}

bool ReplyParser::step_body(ReplyPieces& out) {
  for (std::size_t i = 0; i < held_.size(); ++i) {
    if (!take_body(held_[i])) {
      held_.erase(0, i);
      give_up_call(out);
      return true;
    }
    if (!is_emitted_) call_text_ += held_[i];
    if (!is_body_complete_) continue;
    held_.erase(0, i + 1);
    if (end_call()) {
      flush_arguments(out);
      is_at_start_ = false;
      state_ = State::after_call;
    } else {
      give_up_call(out);
    }
    return true;
  }
  held_.clear();
  return false;
}

bool ReplyParser::take_body(char c) {
  const JsonScanner::Place before = scanner_.place();
  const bool is_outside = scanner_.depth() == 0;
  const JsonScanner::Result result = scanner_.feed(c);
  if (result == JsonScanner::Result::malformed) return false;
  is_body_complete_ = result == JsonScanner::Result::complete;
  if (member_ == Member::arguments) {
    // A bare control character is valid inside a string or as whitespace only.
    if (static_cast<unsigned char>(c) < 0x20 && before == JsonScanner::Place::string) {
      append_escaped(arguments_, c);
    } else {
      arguments_ += c;
    }
    const bool is_end =
        scanner_.place() == JsonScanner::Place::end_of_value && scanner_.depth() == (is_arguments_alone_ ? 0 : 1);
    if (is_end) {
      has_arguments_ = true;
      member_ = Member::none;
    }
    return is_emitted_ || name_.empty() || emit_call();
  }
  return is_outside || take_member(c, before);
}

// Takes a character of the object around the arguments.
bool ReplyParser::take_member(char c, JsonScanner::Place before) {
  using Place = JsonScanner::Place;
  const Place place = scanner_.place();
  if (member_ == Member::key || member_ == Member::name) {
    string_ += c;
    if (string_.size() > kIntroBytesMax) return false;
    if (place == Place::string || place == Place::escape || place == Place::hex) return true;
    const auto text = jinja::read_json(string_, jinja::kOtherInput);
    if (!text) return false;
    const std::string& read = text->as_text()->bytes();
    if (member_ == Member::key) {
      key_ = read;
    } else {
      if (read.empty() || read.size() > kNameBytesMax || !name_.empty()) return false;
      name_ = read;
      if (has_arguments_ && !emit_call()) return false;
    }
    member_ = Member::none;
    return true;
  }
  if (scanner_.depth() == 1 && place == Place::string && scanner_.is_key()) {
    member_ = Member::key;
    string_ = c;
    return true;
  }
  // The first character of a member's value.
  const bool is_object = before == Place::value && place == Place::first_key && scanner_.depth() == 2;
  const bool is_value = (before == Place::value && place != Place::value && scanner_.depth() == 1) || is_object ||
                        (before == Place::value && place == Place::first_value && scanner_.depth() == 2);
  if (!is_value) return true;
  if (key_ == "name") {
    if (place != Place::string) return false;
    member_ = Member::name;
    string_ = c;
  } else if (key_ == "arguments" || key_ == "parameters") {
    if (!is_object || has_arguments_) return false;
    member_ = Member::arguments;
    arguments_ = c;
    return name_.empty() || emit_call();
  }
  return true;
}

// Emits the call once it is decided. False: the text is not a call.
bool ReplyParser::emit_call() {
  const bool is_known = std::ranges::contains(format_.tools, name_);
  if ((format_.calls == CallSyntax::llama3 && !is_known) || !finds_calls()) return false;
  calls_.push_back({.kind = ReplyPart::Kind::tool_call,
                    .call = static_cast<std::int32_t>(calls_.size()),
                    .id = call_id(seed_, calls_.size()),
                    .name = name_});
  is_emitted_ = true;
  call_text_.clear();
  return true;
}

std::optional<std::string> ReplyParser::begun_call() const {
  const bool has_begun = state_ == State::intro || (state_ == State::body && !is_emitted_);
  if (!has_begun || (mark_bytes_ == 0 && !std::ranges::contains(format_.tools, name_))) return std::nullopt;
  return call_text_.substr(mark_bytes_) + held_;
}

// Ends a call with complete JSON. False: the text is not a call.
bool ReplyParser::end_call() {
  if (name_.empty()) return false;
  if (!has_arguments_) arguments_ = "{}";
  return is_emitted_ || emit_call();
}

void ReplyParser::give_up_call(ReplyPieces& out) {
  flush_arguments(out);
  is_emitted_ = false;
  state_ = State::content;
  skips_blanks_ = false;
  add_content(call_text_, out, taken() - call_text_.size());
  call_text_.clear();
}

void ReplyParser::flush_arguments(ReplyPieces& out) {
  if (!is_emitted_ || arguments_emitted_ == arguments_.size()) return;
  ReplyPart part = calls_.back();
  if (arguments_emitted_ > 0) {
    part.id.clear();
    part.name.clear();
  }
  part.text = arguments_.substr(arguments_emitted_);
  calls_.back().text += part.text;
  arguments_emitted_ = arguments_.size();
  add_part(std::move(part), out);
}

bool ReplyParser::step_after_call() {
  std::string_view rest = held_;
  const auto skip_blanks = [&] { rest.remove_prefix(blanks_at_begin(rest)); };
  const auto take = [&](std::string_view mark) {
    if (rest.starts_with(mark)) {
      rest.remove_prefix(mark.size());
      return Found::yes;
    }
    return mark.starts_with(rest) ? Found::maybe : Found::no;
  };
  // The following text is content or the next call's mark.
  const auto go_on = [&] {
    held_.erase(0, held_.size() - rest.size());
    state_ = State::content;
    skips_blanks_ = true;
    return true;
  };
  const auto begin_next = [&](bool is_list) {
    call_text_.clear();
    mark_bytes_ = held_.size() - rest.size();
    begin_call({.found = Found::yes, .length = mark_bytes_, .is_list = is_list});
    return true;
  };
  skip_blanks();
  switch (format_.calls) {
    case CallSyntax::tagged:
      return take(kTaggedEnd) != Found::maybe && go_on();
    case CallSyntax::llama3:
      while (rest.starts_with(';') || rest.starts_with(',')) {
        rest.remove_prefix(1);
        skip_blanks();
      }
      if (rest.empty()) return false;
      return rest.front() == '{' ? begin_next(false) : go_on();
    case CallSyntax::mistral:
      if (!is_in_list_) return go_on();
      if (rest.empty()) return false;
      if (rest.front() == ',') {
        rest.remove_prefix(1);
        skip_blanks();
        if (rest.empty()) return false;
        return rest.front() == '{' ? begin_next(true) : go_on();
      }
      (void)take("]");
      return go_on();
    case CallSyntax::deepseek:
      for (const std::string_view mark : {std::string_view("```"), kCallEnd}) {
        if (take(mark) == Found::maybe) return false;
        skip_blanks();
      }
      if (const Found end = take(kCallsEnd); end != Found::no) return end == Found::yes && go_on();
      if (kCallBegin.starts_with(rest)) return false;
      if (!rest.starts_with(kCallBegin)) return go_on();
      held_.erase(0, held_.size() - rest.size());
      call_text_.clear();
      mark_bytes_ = 0;
      state_ = State::intro;
      return true;
    case CallSyntax::none:
      break;
  }
  return go_on();
}

void ReplyParser::finish(ReplyPieces& out) {
  switch (state_) {
    case State::reasoning:
      add_reasoning(without_blanks_at_end(held_), out);
      break;
    case State::intro:
    case State::body:
      add_content(call_text_ + held_, out, taken() - call_text_.size());
      break;
    case State::content:
      if (!skips_blanks_) add_content(held_, out, taken());
      break;
    case State::start:
      add_content(held_, out, taken());
      break;
    case State::after_call:  // Only whitespace and the beginning of a closing mark.
      break;
  }
  held_.clear();
  call_text_.clear();
}

void ReplyParser::add_content(std::string_view text, ReplyPieces& out, std::size_t begin) {
  out.content += text;
  if (!text.empty()) out.content_places.push_back({begin, begin + text.size()});
  is_at_start_ = is_at_start_ && text.empty();
}

void ReplyParser::add_reasoning(std::string_view text, ReplyPieces& out) {
  if (text.empty()) return;
  reasoning_ += text;
  add_part({.kind = ReplyPart::Kind::reasoning, .text = std::string(text)}, out);
}

void ReplyParser::add_part(ReplyPart part, ReplyPieces& out) {
  (out.content.empty() ? out.before : out.after).push_back(std::move(part));
}

std::string ReplyParser::message_extra() const {
  using jinja::Value;
  const auto text = [](const std::string& bytes) { return Value::text(std::string_view(bytes)); };
  std::vector<Value::Entry> fields;
  if (!reasoning_.empty()) fields.emplace_back("reasoning_content", text(reasoning_));
  std::vector<Value> calls;
  for (const ReplyPart& call : calls_) {
    calls.push_back(Value::dict(
        {{"id", text(call.id)},
         {"type", text("function")},
         {"function", Value::dict(std::vector<Value::Entry>{{"name", text(call.name)}, {"arguments", text(call.text)}})}}));
  }
  if (!calls.empty()) fields.emplace_back("tool_calls", Value::list(std::move(calls)));
  if (fields.empty()) return "";
  jinja::Budget budget(UINT64_MAX, UINT64_MAX);  // Unlimited, because the input is our own and bounded by the reply.
  jinja::JsonStyle style;
  style.between_items = ",";
  style.after_key = ":";
  return jinja::to_json(Value::dict(std::move(fields)), style, budget).bytes();
}

}  // namespace uma::chat
