#include "chat/reply/reply_parser.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "base/random.h"
#include "chat/calls/element_reader.h"
#include "chat/calls/loose_reader.h"
#include "jinja/json_reader.h"
#include "jinja/value.h"

namespace uma::chat {
namespace {

constexpr std::size_t kParsedCallsMax = 128;
constexpr std::size_t kBlanksBehindMax = 64;     // Behind the only call of a reply.
constexpr std::size_t kBlanksBetweenMax = 1024;  // Behind the text between two calls.

// The characters with which the arguments or the object of a call may begin; empty: any.
std::string_view begins_of(const Family& family, const CallForm& form, bool is_function) {
  if (form.style == ArgumentStyle::raw) return "";
  if (is_function || form.style == ArgumentStyle::json) return "{";
  return form.style == ArgumentStyle::loose ? "({" : family.element.open.substr(0, 1);
}

// The shortest mark that is no other text, and the shortest begin of one.
constexpr std::size_t kMarkBytesMin = 3;
constexpr std::size_t kBegunBytesMin = 2;
constexpr std::size_t kBlanksInBraceMax = 64;  // Before the first key of an object that could be a raw text.
constexpr std::size_t kIdBytes = 9;

// Letters and digits, the form that the strictest template takes (CallIds::nine).
std::string call_id(std::uint64_t seed, std::size_t call) {
  constexpr std::string_view kCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  Random random(seed + call);
  std::string id(kIdBytes, ' ');
  for (char& c : id) c = kCharacters[random.next_below(kCharacters.size())];
  return id;
}

bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// The name in an id like functions.name:0; the id itself if it is none.
std::string name_in(std::string_view id) {
  constexpr std::string_view kBegin = "functions.";
  if (id.starts_with(kBegin)) id.remove_prefix(kBegin.size());
  return std::string(id.substr(0, std::min(id.rfind(':'), id.size())));
}

// Whether an object of JSON begins here, and no other text in braces.
Found begins_object(std::string_view text) {
  text.remove_prefix(1);
  const std::size_t blanks = blanks_at_begin(text);
  if (blanks > kBlanksInBraceMax) return Found::no;
  if (blanks == text.size()) return Found::maybe;
  return text[blanks] == '"' || text[blanks] == '}' ? Found::yes : Found::no;
}

// Takes `mark` from the begin of `text`.
Found take(std::string_view& text, std::string_view mark) {
  const Found found = begins_with(text, mark);
  if (found == Found::yes) text.remove_prefix(mark.size());
  return found;
}

}  // namespace

void ReplyPieces::clear() {
  before.clear();
  content.clear();
  content_places.clear();
  after.clear();
}

ReplyParser::ReplyParser(ReplyFormat format, std::uint64_t seed) : format_(std::move(format)), seed_(seed) {
  if (format_.begins_with_reasoning) {
    state_ = State::reasoning;
    skips_blanks_ = !format_.keeps_thoughts;
    is_first_thought_ = !format_.keeps_thoughts;
  } else {
    skips_blanks_ = format_.begins_with_blanks;
  }
  add_openers();
  begun_bytes_ = format_.begun.size();
  if (begun_bytes_ == 0) return;
  ReplyPieces begun;
  push(format_.begun, begun);
}

void ReplyParser::add_opener(Opener opener) {
  const auto add_first = [&](std::string_view text) {
    if (!text.empty() && !first_bytes_.contains(text.front())) first_bytes_ += text.front();
  };
  if (const PatternPart& first = opener.pattern.front(); first.kind == PatternPart::Kind::name) {
    for (const auto& [name, types] : *format_.tools) add_first(name);
  } else {
    add_first(first.text);  // {function} is an object, so its text fits, too.
  }
  openers_.push_back(std::move(opener));
}

// In the order in which they are compared.
void ReplyParser::add_openers() {
  using Kind = Opener::Kind;
  const bool has_thoughts = !format_.thoughts.open.empty();
  if (has_thoughts) add_opener({.kind = Kind::thoughts, .pattern = pattern_of(format_.thoughts.open)});
  if (format_.family == nullptr) return;
  if (format_.tools != nullptr) {
    for (const auto& [name, types] : *format_.tools) {
      if (name.contains(' ')) spaced_names_.push_back(name);
    }
    for (const CallForm& form : format_.family->calls) add_form(form);
    if (has_thoughts) add_opener({.kind = Kind::thoughts_end, .pattern = pattern_of(format_.thoughts.close)});
  }
  for (const std::string_view mark : format_.family->dropped) add_opener({.kind = Kind::dropped, .pattern = pattern_of(mark)});
  for (const Marks& marks : format_.family->around) {
    add_opener({.kind = Kind::around_begin, .pattern = pattern_of(marks.open), .around = &marks});
    if (!marks.close.empty()) add_opener({.kind = Kind::around_end, .pattern = pattern_of(marks.close), .around = &marks});
  }
  drops_marks_ = !format_.family->dropped.empty() || !format_.family->around.empty();
}

void ReplyParser::add_form(const CallForm& form) {
  Form divided{.form = &form};
  const Pattern call = pattern_of(form.call);
  const auto arguments = std::ranges::find_if(call, [](const PatternPart& part) {
    return part.kind == PatternPart::Kind::arguments || part.kind == PatternPart::Kind::function;
  });
  divided.head.assign(call.begin(), arguments + 1);
  divided.tail.assign(arguments + 1, call.end());
  divided.separator = without_blanks(form.between);
  const auto add_texts = [&](const Pattern& pattern) {
    for (const PatternPart& part : pattern) {
      if (part.kind == PatternPart::Kind::text) divided.closers.push_back(part.text);
    }
  };
  add_texts(divided.tail);
  divided.closers_of_call = divided.closers.size();
  add_texts(pattern_of(form.close));
  Pattern opener = pattern_of(form.open);
  opener.insert(opener.end(), divided.head.begin(), divided.head.end());
  forms_.push_back(std::move(divided));
  add_opener({.kind = Opener::Kind::call, .pattern = std::move(opener), .form = &form});
}

void ReplyParser::push(std::string_view text, ReplyPieces& out) {
  held_ += text;
  pushed_ += text.size();
  while (step(out)) {
  }
  flush_arguments(out);
}

// Takes text in the current state. True: the state changed, call again.
bool ReplyParser::step(ReplyPieces& out) {
  undecided_.reset();
  switch (state_) {
    case State::reasoning:
      return step_reasoning(out);
    case State::content:
      return step_content(out);
    case State::call:
      return step_call(out);
    case State::after_call:
      break;
  }
  return step_after_call();
}

// No call begins in the text that the client has written.
bool ReplyParser::finds_calls() const {
  return format_.tools != nullptr && pushed_ > begun_bytes_ && calls_.size() < kParsedCallsMax;
}

// Whether this mark means anything in the current state. `is_next`: only whitespace stands before it.
bool ReplyParser::may_open(const Opener& opener, bool is_next) const {
  const bool is_in_reasoning = state_ == State::reasoning;
  switch (opener.kind) {
    case Opener::Kind::thoughts:
      return !is_in_reasoning && ((may_think_ && is_next) || (format_.family != nullptr && format_.family->thinks_anywhere));
    case Opener::Kind::thoughts_end:
      return !is_in_reasoning && has_open_thoughts_ && !format_.keeps_thoughts;
    case Opener::Kind::dropped:
      return !is_in_reasoning;
    case Opener::Kind::around_begin:
      return !is_in_reasoning && is_at_start_ && is_next && !std::ranges::contains(around_taken_, opener.around);
    case Opener::Kind::around_end:
      return !is_in_reasoning && around_ == opener.around;
    case Opener::Kind::call:
      break;
  }
  if (!finds_calls()) return false;
  if (is_in_reasoning) return format_.family->may_call_in_thoughts && !opener.form->begins_reply;
  return (is_at_start_ && is_next && around_taken_.empty()) || !opener.form->begins_reply;
}

// Compares the text with a mark, or, if `form` is not null, with the head of a call.
CallHead ReplyParser::head_of(const Pattern& pattern, const CallForm* form, std::string_view text) const {
  const bool is_function = form != nullptr && pattern.back().kind == PatternPart::Kind::function;
  CallHead head =
      match_head(pattern, text, form == nullptr ? "" : begins_of(*format_.family, *form, is_function), spaced_names_);
  if (head.found == Found::no || form == nullptr) return head;
  if (head.name.empty() && !head.id.empty()) head.name = name_in(head.id);
  if (head.name.empty()) head.name = form->name;
  // The name is empty while it may go on.
  const bool needs_known = (form->needs_known_name || state_ == State::reasoning) && !is_function;
  if (needs_known && (head.found == Found::yes || !head.name.empty()) && !is_known(head.name)) head.found = Found::no;
  if (head.found == Found::yes && form->style == ArgumentStyle::json && !is_function && may_be_raw(head.name))
    head.found = begins_object(text.substr(head.length));
  return head;
}

// Whether the arguments of this function may also be a raw text.
bool ReplyParser::may_be_raw(std::string_view name) const {
  return std::ranges::any_of(format_.family->calls,
                             [&](const CallForm& form) { return form.style == ArgumentStyle::raw && form.name == name; });
}

// Finds the first mark; none begins with whitespace. One that may begin at the end of the text is found too.
ReplyParser::Place ReplyParser::find_opener(std::string_view text, std::size_t blanks) const {
  for (std::size_t at = text.find_first_of(first_bytes_, blanks); at != std::string_view::npos;
       at = text.find_first_of(first_bytes_, at + 1)) {
    const bool is_next = blanks >= at;
    for (const Opener& opener : openers_) {
      if (!may_open(opener, is_next)) continue;
      CallHead head = head_of(opener.pattern, opener.form, text.substr(at));
      if (head.found != Found::no) return {.at = at, .found = head.found, .opener = &opener, .head = std::move(head)};
    }
  }
  return {.at = text.size()};
}

// Drops whitespace where it does not count. True: there is nothing else.
bool ReplyParser::skips_blanks() {
  if (!skips_blanks_) return false;
  drop_held(held_blanks());
  if (held_.empty()) return true;
  skips_blanks_ = false;
  return false;
}

std::size_t ReplyParser::held_blanks() {
  blanks_known_ += blanks_at_begin(std::string_view(held_).substr(blanks_known_));
  return blanks_known_;
}

void ReplyParser::drop_held(std::size_t bytes) {
  held_.erase(0, bytes);
  blanks_known_ -= std::min(blanks_known_, bytes);
}

std::optional<std::string> ReplyParser::behind_thoughts(std::string_view coming) const {
  const std::string_view close = format_.thoughts.close;
  // held_ has not the whole mark.
  const std::size_t begin = held_.size() - std::min(held_.size(), close.size() - 1);
  const std::string text = held_.substr(begin) + std::string(coming);
  const std::size_t at = text.find(close);
  return at == std::string::npos ? std::nullopt : std::optional(text.substr(at + close.size()));
}

bool ReplyParser::is_reasoning(std::string_view coming) const {
  return state_ == State::reasoning && (coming.empty() || !behind_thoughts(coming));
}

std::size_t ReplyParser::thoughts_ended(std::string_view coming) const {
  return thoughts_ended_ + (state_ == State::reasoning && !is_reasoning(coming) ? 1 : 0);
}

std::string ReplyParser::undecided_content(std::string_view coming) const {
  const bool has_thoughts = state_ == State::reasoning;
  std::string text = has_thoughts ? behind_thoughts(coming).value_or("") : held_ + std::string(coming);
  if (has_thoughts ? !format_.keeps_thoughts : skips_blanks_) text.erase(0, blanks_at_begin(text));
  return text;
}

bool ReplyParser::step_reasoning(ReplyPieces& out) {
  if (skips_blanks()) return false;
  if (is_first_thought_) {
    // Some models open their thoughts although the prompt has done so.
    const CallHead again = match_head(pattern_of(format_.thoughts.open), held_, "");
    if (again.found == Found::maybe) return false;
    is_first_thought_ = false;
    if (again.found == Found::yes) {
      drop_held(again.length);
      skips_blanks_ = true;
      return true;
    }
  }
  const std::size_t blanks = held_blanks();
  const std::string_view held = held_;
  const std::size_t close = held.find(format_.thoughts.close, blanks);
  const bool has_close = close != std::string_view::npos;
  const std::size_t end = has_close ? close : held.size() - begun_at_end(held, format_.thoughts.close);
  const Place place = find_opener(held.substr(0, close), blanks);
  const bool is_call = place.found == Found::yes;
  const bool is_over = !is_call && has_close;
  const bool keeps_end = is_over && format_.keeps_thoughts;
  const std::string_view reasoning =
      keeps_end ? held.substr(0, close + format_.thoughts.close.size())
                : without_blanks_at_end(held.substr(0, is_over ? close : std::min(end, place.at)), blanks);
  add_reasoning(reasoning, out, taken());
  if (is_call) {
    is_in_thoughts_ = true;
    begin_call(*place.opener->form, place.head, reasoning.size(), place.at + place.head.length);
    return true;
  }
  drop_held(is_over ? close + format_.thoughts.close.size() : reasoning.size());
  if (!is_over) return false;
  state_ = State::content;
  ++thoughts_ended_;
  skips_blanks_ = !format_.keeps_thoughts;
  may_think_ = false;
  return true;
}

bool ReplyParser::step_content(ReplyPieces& out) {
  if (skips_blanks()) return false;
  const std::size_t blanks = held_blanks();
  Place place = is_in_answer_ ? Place{.at = held_.size()} : find_opener(held_, blanks);
  // Text before a mark has begun the answer.
  if (format_.has_answer && place.at > blanks) place = {.at = held_.size()};
  const std::string_view held = held_;
  // Whitespace before a mark is dropped.
  const bool holds_blanks =
      !is_in_answer_ && (finds_calls() || drops_marks_ || (is_at_start_ && !format_.thoughts.open.empty()));
  std::string_view content = held.substr(0, place.at);
  if (holds_blanks) content = without_blanks_at_end(content, blanks);
  const std::size_t length = content.size();
  add_content(content, out, taken());
  if (place.found == Found::yes) {
    const std::size_t end = place.at + place.head.length;
    if (place.opener->kind == Opener::Kind::call) {
      is_in_thoughts_ = false;
      begin_call(*place.opener->form, place.head, length, end);
      return true;
    }
    take_mark(*place.opener);
    const bool is_kept = state_ == State::reasoning && format_.keeps_thoughts;
    if (is_kept) add_reasoning(held.substr(length, end - length), out, taken() + length);
    drop_held(end);
    skips_blanks_ = !is_kept;
    return true;
  }
  drop_held(length);
  if (place.found == Found::maybe) {
    place.at -= length;
    undecided_ = std::move(place);
  }
  return false;
}

// Notes a mark that is no call.
void ReplyParser::take_mark(const Opener& opener) {
  switch (opener.kind) {
    case Opener::Kind::thoughts:
      state_ = State::reasoning;
      has_open_thoughts_ = false;
      break;
    case Opener::Kind::thoughts_end:
      has_open_thoughts_ = false;
      break;
    case Opener::Kind::around_begin:
      around_ = opener.around->close.empty() ? around_ : opener.around;
      around_taken_.push_back(opener.around);
      break;
    case Opener::Kind::around_end:
      around_ = nullptr;
      break;
    case Opener::Kind::dropped:
    case Opener::Kind::call:
      break;
  }
}

const ReplyParser::Form& ReplyParser::form_of(const CallForm& form) const {
  return *std::ranges::find(forms_, &form, &Form::form);
}

// Takes the head of the call, which lies in held_ from `begin` to `end`, and what precedes it.
void ReplyParser::begin_call(const CallForm& form, CallHead head, std::size_t begin, std::size_t end) {
  call_text_.assign(held_, begin, end - begin);
  drop_held(end);
  state_ = State::call;
  form_ = &form_of(form);
  call_ = {.name = std::move(head.name), .id = std::move(head.id), .arguments = {}};
  is_emitted_ = false;
  arguments_emitted_ = 0;
  reader_ = make_reader(*form_);
}

std::unique_ptr<ArgumentReader> ReplyParser::make_reader(const Form& form) const {
  if (form.head.back().kind == PatternPart::Kind::function)
    return std::make_unique<FunctionReader>(format_.waits_for_ids, form.form->begins_reply);
  const auto tool = format_.tools->find(call_.name);
  const ParameterTypes* const types = tool == format_.tools->end() ? nullptr : &tool->second;
  switch (form.form->style) {
    case ArgumentStyle::json:
      break;
    case ArgumentStyle::elements:
      return std::make_unique<ElementReader>(format_.family->element, form.tail, form.closers, types);
    case ArgumentStyle::loose:
      return std::make_unique<LooseReader>(format_.family->quote);
    case ArgumentStyle::raw:
      return std::make_unique<RawReader>(types == nullptr ? ParameterTypes() : *types);
  }
  return std::make_unique<JsonReader>();
}

bool ReplyParser::step_call(ReplyPieces& out) {
  std::string_view rest = held_;
  const ArgumentReader::Result result = reader_->read(rest, call_);
  if (!is_emitted_) call_text_.append(held_, 0, held_.size() - rest.size());
  drop_held(held_.size() - rest.size());
  const bool is_whole = result == ArgumentReader::Result::complete;
  const bool is_none = stands_for_none();
  const bool is_decided = !call_.name.empty() && !call_.arguments.empty() && (is_whole || !format_.waits_for_ids);
  const bool is_call = is_emitted_ || !is_decided || is_none || emit_call();
  if (!is_call || result == ArgumentReader::Result::malformed || (is_whole && !is_emitted_ && !is_none)) {
    give_up_call(out);
    return true;
  }
  if (!is_whole) return false;
  call_text_.clear();
  flush_arguments(out);
  end_call();
  return true;
}

bool ReplyParser::stands_for_none() const {
  return std::ranges::contains(format_.family->no_calls, call_.name) && !is_known(call_.name);
}

// Emits the call once it is decided. False: the text is not a call.
bool ReplyParser::emit_call() {
  if (!finds_calls()) return false;
  if ((form_->form->needs_known_name || is_in_thoughts_) && !is_known(call_.name)) return false;
  calls_.push_back({.kind = ReplyPart::Kind::tool_call,
                    .call = static_cast<std::int32_t>(calls_.size()),
                    .id = id_of_call(),
                    .name = call_.name});
  is_emitted_ = true;
  call_text_.clear();
  return true;
}

// The model's id, if it has the family's form and no call before has it; else a new one.
std::string ReplyParser::id_of_call() const {
  const bool has_form = format_.family->ids != CallIds::nine ||
                        (call_.id.size() == kIdBytes && std::ranges::all_of(call_.id, is_letter_or_digit));
  const bool is_new = !std::ranges::contains(calls_, call_.id, &ReplyPart::id);
  return !call_.id.empty() && has_form && is_new ? call_.id : call_id(seed_, calls_.size());
}

void ReplyParser::end_call() {
  is_at_start_ = false;
  may_think_ = true;
  has_open_thoughts_ = has_open_thoughts_ || is_in_thoughts_;
  closers_found_ = 0;
  state_ = State::after_call;
}

std::optional<std::string> ReplyParser::begun_call() const {
  if (state_ == State::call) {
    const bool has_mark = !form_->form->needs_known_name || (!call_.name.empty() && is_known(call_.name));
    if (is_emitted_ || is_in_thoughts_ || !has_mark) return std::nullopt;
    return call_text_.substr(blanks_at_begin(call_text_)) + held_;
  }
  if (state_ != State::content || !undecided_ || undecided_->opener->kind != Opener::Kind::call) return std::nullopt;
  const std::string_view text = std::string_view(held_).substr(undecided_->at);
  if (undecided_->opener->form->needs_known_name && !is_known(undecided_->head.name)) return std::nullopt;
  const std::string_view trigger = format_.family->call_trigger;
  const PatternPart& first = undecided_->opener->pattern.front();
  const bool has_begun = !trigger.empty()                        ? text.contains(trigger)
                         : first.kind == PatternPart::Kind::text ? text.starts_with(first.text)
                                                                 : is_known(undecided_->head.name);
  return has_begun ? std::optional(std::string(text)) : std::nullopt;
}

// Adds the text of a call that is none, or ends the arguments that were emitted.
void ReplyParser::give_up_call(ReplyPieces& out) {
  if (is_emitted_) {
    (void)reader_->finish("", call_);
    flush_arguments(out);
    end_call();
    ++calls_left_;
  }
  skips_blanks_ = false;
  if (is_in_thoughts_ && !is_emitted_) {
    state_ = State::reasoning;
    add_reasoning(call_text_, out, taken() - call_text_.size());
  } else {
    state_ = State::content;
    add_content(call_text_, out, taken() - call_text_.size());
  }
  call_text_.clear();
}

void ReplyParser::flush_arguments(ReplyPieces& out) {
  if (!is_emitted_ || arguments_emitted_ == call_.arguments.size()) return;
  ReplyPart& call = calls_.back();
  ReplyPart part{.kind = call.kind, .text = call_.arguments.substr(arguments_emitted_), .call = call.call};
  if (arguments_emitted_ == 0) {
    part.id = call.id;
    part.name = call.name;
  }
  call.text += part.text;
  arguments_emitted_ = call_.arguments.size();
  add_part(std::move(part), out);
}

// Skips the closing marks of the call, any of which may be missing. A bracket counts once, since it may be text. False: there
// may be more.
bool ReplyParser::skip_closers() {
  for (bool is_changed = true; is_changed;) {
    is_changed = false;
    std::string_view rest = held_;
    rest.remove_prefix(held_blanks());
    if (rest.empty()) return false;
    for (std::size_t i = 0; i < form_->closers.size() && !is_changed; ++i) {
      const std::uint64_t bit = std::uint64_t{1} << i;
      if ((closers_found_ & bit) != 0 && !form_->closers[i].contains('<')) continue;
      const Found found = take(rest, form_->closers[i]);
      if (found == Found::maybe) return false;
      if (found == Found::no) continue;
      is_changed = true;
      closers_found_ |= bit;
      drop_held(held_.size() - rest.size());
    }
  }
  return true;
}

// Begins the next call of the same form if one follows the closing marks.
bool ReplyParser::step_after_call() {
  if (!skip_closers()) return false;
  std::string_view rest = held_;
  const std::size_t begin = held_blanks();
  rest.remove_prefix(begin);
  const bool has_closed_all = closers_found_ >> form_->closers_of_call != 0;
  const bool is_only = !format_.has_parallel_calls && !calls_.empty();
  if (!has_closed_all && !is_only) {
    std::size_t blanks = 0;
    if (!form_->separator.empty()) {
      if (take(rest, form_->separator) == Found::maybe) return false;
      blanks = blanks_at_begin(rest);
      rest.remove_prefix(blanks);
      if (rest.empty() && blanks <= kBlanksBetweenMax) return false;
    }
    CallHead head = blanks <= kBlanksBetweenMax ? head_of(form_->head, form_->form, rest) : CallHead();
    if (head.found == Found::maybe) return false;
    if (head.found == Found::yes && finds_calls()) {
      const std::size_t end = held_.size() - rest.size() + head.length;
      begin_call(*form_->form, std::move(head), begin, end);
      return true;
    }
  }
  // The following text is content or the next call's mark. Behind the only call it is neither.
  drop_held(is_only ? held_.size() : begin);
  state_ = State::content;
  ++calls_left_;
  skips_blanks_ = true;
  return true;
}

bool ReplyParser::has_ended() const {
  if (format_.has_parallel_calls || calls_.empty()) return false;
  const bool has_closers =
      state_ == State::after_call && (form_->closers.empty() || closers_found_ >> (form_->closers.size() - 1) != 0);
  const bool is_blank = state_ == State::after_call && held_.size() > kBlanksBehindMax;
  return state_ == State::content || has_closers || is_blank;
}

// Whether the text is a mark that is no content, although a call may begin with it.
bool ReplyParser::is_dropped_mark(std::string_view text) const {
  return std::ranges::any_of(openers_, [&](const Opener& opener) {
    if (opener.kind != Opener::Kind::dropped) return false;
    const CallHead head = match_head(opener.pattern, text, "");
    return head.found == Found::yes && without_blanks(text.substr(head.length)).empty();
  });
}

bool ReplyParser::has_begun_mark(const Pattern& pattern, std::string_view text) {
  const PatternPart& first = pattern.front();
  if (first.kind != PatternPart::Kind::text || first.text.size() < kMarkBytesMin || text.size() < kBegunBytesMin) return false;
  // Words that begin a mark are words, too.
  const char c = first.text.front();
  return static_cast<unsigned char>(c) < 0x80 && !is_letter_or_digit(c);
}

// Drops the begin of a mark, or of a call that is not known yet: the reply was cut there.
void ReplyParser::drop_begun_mark() {
  if (state_ == State::content && undecided_) {
    const std::string_view text = std::string_view(held_).substr(undecided_->at);
    if (!begun_call() && !has_begun_mark(undecided_->opener->pattern, text)) return;
    held_.resize(without_blanks_at_end(std::string_view(held_).substr(0, undecided_->at)).size());
    undecided_.reset();
  } else if (state_ == State::call && !is_emitted_ && !is_in_thoughts_) {
    // The call has only waited for its id.
    if (format_.waits_for_ids && !call_.name.empty() && !call_.arguments.empty()) return;
    const auto opener = std::ranges::find(openers_, form_->form, &Opener::form);
    if (!begun_call() && !has_begun_mark(opener->pattern, call_text_)) return;
    call_text_.clear();
    held_.clear();
  }
}

void ReplyParser::finish(ReplyPieces& out, bool is_cut) {
  if (is_cut) drop_begun_mark();
  if (state_ == State::content && undecided_ && is_dropped_mark(std::string_view(held_).substr(undecided_->at)))
    held_.resize(without_blanks_at_end(std::string_view(held_).substr(0, undecided_->at)).size());
  if (state_ == State::call) {
    const bool is_none = stands_for_none();
    // A call that has waited for its id has no other end at a limit or a stop string.
    const bool is_begun = format_.waits_for_ids && !call_.arguments.empty();
    const bool may_end = (!is_cut && reader_->finish(held_, call_)) || is_begun;
    const bool is_whole = may_end && !is_none && !call_.name.empty() && (is_emitted_ || emit_call());
    flush_arguments(out);
    if (is_none) call_text_.clear();
    if (is_whole || (is_cut && is_emitted_) || is_none) held_.clear();
    held_.insert(0, call_text_);  // Empty once the call is emitted.
    blanks_known_ = 0;
    state_ = is_in_thoughts_ && !is_emitted_ ? State::reasoning : State::content;
    skips_blanks_ = false;
  } else if (state_ == State::after_call) {
    // Whitespace, and the begin of a mark or of another call.
    std::string_view rest = without_blanks(held_);
    if (is_cut || rest == form_->separator || is_dropped_mark(rest)) rest = {};
    held_ = std::string(rest);
    blanks_known_ = 0;
    state_ = State::content;
    skips_blanks_ = false;
  }
  if (state_ == State::reasoning) {
    add_reasoning(format_.keeps_thoughts ? std::string_view(held_) : without_blanks_at_end(held_), out, taken());
  } else if (!skips_blanks_) {
    add_content(held_, out, taken());
  }
  held_.clear();
  blanks_known_ = 0;
  call_text_.clear();
}

std::string_view ReplyParser::without_begun(std::string_view text, std::size_t& begin) const {
  const std::size_t known = begun_bytes_ - std::min(begun_bytes_, begin);
  text.remove_prefix(std::min(known, text.size()));
  begin = std::max(begin, begun_bytes_) - begun_bytes_;
  return text;
}

void ReplyParser::append_content(std::string_view text, ReplyPieces& out, std::size_t begin) {
  text = without_begun(text, begin);
  if (text.empty()) return;
  out.content += text;
  out.content_places.push_back({begin, begin + text.size()});
}

void ReplyParser::add_content(std::string_view text, ReplyPieces& out, std::size_t begin) {
  if (text.empty()) return;
  append_content(text, out, begin);
  if (without_blanks(text).empty()) return;
  is_at_start_ = false;
  may_think_ = false;
  is_in_answer_ = format_.has_answer;
}

void ReplyParser::add_reasoning(std::string_view text, ReplyPieces& out, std::size_t begin) {
  if (text.empty()) return;
  if (format_.keeps_thoughts) return append_content(text, out, begin);
  text = without_begun(text, begin);
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
