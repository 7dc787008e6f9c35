#include "chat/message_values.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <format>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "chat/calls/call_pattern.h"
#include "chat/calls/tool_format.h"
#include "chat/calls/written_calls.h"
#include "chat/turns.h"
#include "jinja/json_reader.h"

namespace uma::chat {
namespace {

using jinja::Source;
using jinja::Text;
using jinja::Value;

// A message before it gets its style.
struct Draft {
  std::string role;
  std::string content;
  Source source{};
  std::optional<Value> extra;  // A dict.
  bool has_system_text = false;
  std::vector<std::pair<std::size_t, Source>> joined{};  // Sources of the content from these bytes on.
};

// The id and the name of a call, as its result repeats them.
struct CallName {
  std::string id;  // In the family's form.
  std::string name;
};

struct WrittenCall {
  std::string given_id;
  CallName name;
  Value arguments;
  const Draft* result = nullptr;
};

// The calls of one reply that have no result yet.
class OpenCalls {
 public:
  // `calls` must stay in their place.
  explicit OpenCalls(std::span<WrittenCall> calls) {
    for (WrittenCall& call : calls) {
      all_.calls.push_back(&call);
      by_id_[call.given_id].calls.push_back(&call);
    }
  }

  // The first one with this id, or the first of all if it is empty; null: there is none.
  [[nodiscard]] WrittenCall* next(const std::string& id) {
    const auto found = by_id_.find(id);
    if (!id.empty() && found == by_id_.end()) return nullptr;
    Queue& queue = id.empty() ? all_ : found->second;
    while (queue.next < queue.calls.size() && queue.calls[queue.next]->result != nullptr) ++queue.next;
    return queue.next == queue.calls.size() ? nullptr : queue.calls[queue.next];
  }

 private:
  struct Queue {
    std::vector<WrittenCall*> calls;
    std::size_t next = 0;  // The calls before this index have a result.
  };
  Queue all_;
  std::map<std::string_view, Queue> by_id_;
};

const Value* field_of(const Value& value, std::string_view name) {
  const jinja::Dict* dict = value.as_dict();
  return dict == nullptr ? nullptr : dict->find(name);
}

std::string text_field_of(const Value& value, std::string_view name) {
  const Value* field = field_of(value, name);
  return field == nullptr || field->as_text() == nullptr ? "" : field->as_text()->bytes();
}

// The id of the call that a result names; empty: none.
std::string given_id_of(const Draft& result) {
  return result.extra ? text_field_of(*result.extra, "tool_call_id") : "";
}

Value input_of(std::string_view text, Source source) {
  return Value::text(Text::input(std::string(text), source));
}

Value call_value(const WrittenCall& call, Source source) {
  source.part = PromptPart::call;
  std::vector<Value::Entry> fields;
  if (!call.name.id.empty()) fields.emplace_back("id", input_of(call.name.id, source));
  fields.emplace_back("type", Value::text("function"));
  fields.emplace_back("function", Value::dict(std::vector<Value::Entry>{{"name", input_of(call.name.name, source)},
                                                                        {"arguments", call.arguments}}));
  return Value::dict(std::move(fields));
}

// Appends the content of a message that becomes a part of the one before it.
void join_content(Draft& last, const Draft& next) {
  if (!last.content.empty()) last.content += '\n';
  if (next.role == "assistant") {
    last.source = next.source;  // Replies in a row are found as the last one.
  } else {
    last.joined.emplace_back(last.content.size(), next.source);
    for (const auto& [begin, source] : next.joined) last.joined.emplace_back(last.content.size() + begin, source);
  }
  last.content += next.content;
}

Text content_of(const Draft& draft) {
  Text text;
  std::size_t at = 0;
  Source source = draft.source;
  const std::string_view content = draft.content;
  for (const auto& [begin, next] : draft.joined) {
    text.append(Text::input(std::string(content.substr(at, begin - at)), source));
    at = begin;
    source = next;
  }
  text.append(Text::input(std::string(content.substr(at)), source));
  return text;
}

const Value* calls_of(const Draft& draft) {
  const Value* calls = draft.extra ? field_of(*draft.extra, "tool_calls") : nullptr;
  return calls == nullptr || calls->as_list() == nullptr || calls->as_list()->items.empty() ? nullptr : calls;
}

// Appends a message to the one before it. False: results of calls may stand between the two.
bool join_drafts(Draft& last, Draft& next) {
  if (calls_of(last) != nullptr) return false;
  if (last.role == next.role && next.extra) last.extra = std::move(next.extra);
  join_content(last, next);
  return true;
}

// --- system messages

// Adds a message for a template that takes one system message. Anthropic's clients mark later ones in the same way, so that one
// conversation has one text through all APIs.
void add_with_one_system(Draft draft, std::vector<Draft>& drafts) {
  Draft* last = drafts.empty() ? nullptr : &drafts.back();
  const bool is_system = draft.role == "system";
  bool joins = is_system && last != nullptr && last->role == "system";
  if (is_system && last != nullptr && !joins) {
    draft.role = "user";
    draft.content = std::format("<system-reminder>\n{}\n</system-reminder>", draft.content);
    draft.has_system_text = true;
  }
  if (last != nullptr && draft.role == "user" && last->role == "user") joins = draft.has_system_text || last->has_system_text;
  if (!joins) {
    drafts.push_back(std::move(draft));
    return;
  }
  join_content(*last, draft);
  last->has_system_text = last->has_system_text || draft.has_system_text;
}

// Adds an empty result for each call that has none because the user went on, for a template that insists on turns.
std::vector<Draft> with_missing_results(std::vector<Draft> drafts) {
  std::vector<Draft> all;
  all.reserve(drafts.size());
  for (Draft& draft : drafts) {
    const Value* calls = !all.empty() && draft.role == "user" ? calls_of(all.back()) : nullptr;
    const std::size_t missing = calls == nullptr ? 0 : calls->as_list()->items.size();
    for (std::size_t i = 0; i < missing; ++i) all.push_back({.role = "tool", .content = "", .extra = std::nullopt});
    all.push_back(std::move(draft));
  }
  return all;
}

// --- histories that a template refuses

constexpr std::string_view kThoughts = "reasoning_content";

std::vector<std::string> ids_of_calls(const Draft& draft) {
  std::vector<std::string> ids;
  if (const Value* calls = calls_of(draft)) {
    for (const Value& call : calls->as_list()->items) ids.push_back(text_field_of(call, "id"));
  }
  return ids;
}

// Makes results that answer no call of the reply before them texts of the user. A result belongs to the call that it names,
// else to the first one without a result.
void spell_out_lone_results(std::vector<Draft>& drafts) {
  std::vector<std::string> open;
  for (auto begin = drafts.begin(); begin != drafts.end();) {
    if (begin->role != "tool") {
      open = ids_of_calls(*begin++);
      continue;
    }
    const auto end = std::find_if(begin, drafts.end(), [](const Draft& draft) { return draft.role != "tool"; });
    std::vector<Draft*> unnamed;
    for (Draft& result : std::span(begin, end)) {
      const auto call = std::ranges::find(open, given_id_of(result));
      if (call == open.end()) {
        unnamed.push_back(&result);
      } else {
        open.erase(call);
      }
    }
    for (std::size_t i = std::min(open.size(), unnamed.size()); i < unnamed.size(); ++i) {
      unnamed[i]->role = "user";
      unnamed[i]->content = spelled_result(unnamed[i]->content);
      unnamed[i]->extra.reset();
    }
    begin = end;
  }
}

// The texts of marks that are no content, such as <|channel|>.
std::vector<std::string_view> message_marks(const Family& family) {
  std::vector<std::string_view> marks;
  for (const std::string_view mark : family.dropped) {
    for (const PatternPart& part : pattern_of(mark)) {
      if (part.kind == PatternPart::Kind::text) marks.push_back(part.text);
    }
  }
  return marks;
}

void erase_all(std::string& text, std::span<const std::string_view> parts) {
  for (const std::string_view part : parts) {
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at)) text.erase(at, part.size());
  }
}

// Takes the marks out of a reply that a client has sent back as the model wrote it.
void take_marks_out(Draft& reply, const ReplyFormat& format) {
  const std::vector<std::string_view> marks = message_marks(*format.family);
  std::string thoughts = reply.extra ? text_field_of(*reply.extra, kThoughts) : "";
  const auto is_in = [&](std::string_view text) {
    return std::ranges::any_of(marks, [&](std::string_view mark) { return text.contains(mark); });
  };
  if (!is_in(reply.content) && !is_in(thoughts)) return;
  ReplyParser parser({.family = format.family, .thoughts = format.thoughts}, 0);
  ReplyPieces pieces;
  parser.push(reply.content, pieces);
  parser.finish(pieces);
  reply.content = std::move(pieces.content);
  if (!parser.reasoning().empty()) thoughts += (thoughts.empty() ? "" : "\n") + parser.reasoning();
  erase_all(reply.content, marks);
  erase_all(thoughts, marks);
  std::vector<Value::Entry> fields;
  if (!thoughts.empty()) fields.emplace_back(std::string(kThoughts), input_of(thoughts, reply.source));
  if (reply.extra) {
    for (const auto& [key, field] : reply.extra->as_dict()->entries) {
      if (key->bytes() != kThoughts) fields.emplace_back(key->bytes(), field);
    }
  }
  reply.extra = Value::dict(std::move(fields));
}

bool is_empty_reply(const Draft& draft) {
  return draft.role == "assistant" && without_blanks(draft.content).empty() && calls_of(draft) == nullptr &&
         (!draft.extra || text_field_of(*draft.extra, kThoughts).empty());
}

void mend(std::vector<Draft>& drafts, const ReplyFormat& format) {
  spell_out_lone_results(drafts);
  for (Draft& draft : drafts) {
    if (draft.role == "assistant" && format.family != nullptr) take_marks_out(draft, format);
  }
  if (!std::ranges::all_of(drafts, is_empty_reply)) std::erase_if(drafts, is_empty_reply);
}

std::vector<Draft> drafts_of(std::span<const ChatMessage> messages, const MessageStyle& style, const ReplyFormat* refused) {
  std::vector<Draft> drafts;
  drafts.reserve(messages.size());
  std::size_t leading = 0;  // System messages before all others.
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const bool is_leading = message.role == "system" && i == leading;
    if (is_leading) ++leading;
    const auto index = static_cast<std::int32_t>(i);
    const Source source(index, is_leading               ? PromptPart::system
                               : message.role == "tool" ? PromptPart::result
                                                        : PromptPart::text);
    Draft draft{message.role, message.content, source, {}};
    const Source beside(index, message.role == "assistant" ? PromptPart::call : source.part);
    if (!message.extra.empty()) draft.extra = jinja::read_json(message.extra, beside);
    if (draft.extra && draft.extra->as_dict() == nullptr) draft.extra.reset();
    if (style.has_system_messages) {
      drafts.push_back(std::move(draft));
    } else {
      add_with_one_system(std::move(draft), drafts);
    }
  }
  if (refused != nullptr) mend(drafts, *refused);
  if (style.behind_results != MessageStyle::BehindResults::stays) drafts = with_missing_results(std::move(drafts));
  return in_turns(std::move(drafts), style, join_drafts);
}

// --- ids of calls

bool is_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// Nine letters and digits that depend on the id alone, so that they stay the same when a conversation grows.
std::string nine_of(std::string_view id) {
  constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a.
  for (const char c : id) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  std::string made;
  for (int i = 0; i < 9; ++i, hash /= kLetters.size()) made += kLetters[hash % kLetters.size()];
  return made;
}

// The id in the family's form. Ids that have this form are kept, because the model wrote them.
std::string id_in_form(CallIds form, const std::string& id, std::string_view name, std::size_t index) {
  switch (form) {
    case CallIds::any:
      return id;
    case CallIds::nine: {
      const auto is_known = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); };
      return id.size() == 9 && std::ranges::all_of(id, is_known) ? id : nine_of(id.empty() ? std::format("{}", index) : id);
    }
    case CallIds::named: {
      const std::size_t colon = id.rfind(':');
      const bool is_named = id.starts_with("functions.") && colon != std::string::npos && is_digits(id.substr(colon + 1));
      return is_named ? id : std::format("functions.{}:{}", name, index);
    }
    case CallIds::counted:
      return is_digits(id) ? id : std::format("{}", index);
  }
  return id;
}

// --- messages

class ConversationWriter {
 public:
  explicit ConversationWriter(const MessageStyle& style) : style_(style) {}

  std::vector<Value> write(std::span<const Draft> drafts);

 private:
  [[nodiscard]] Value arguments_of(const Value& function, Source source) const;
  [[nodiscard]] const CallName* known_call(const Draft& result) const;
  [[nodiscard]] WrittenCall call_of(const Value& given, Source source);
  [[nodiscard]] Value content_value(Text content, std::string_view thoughts, bool has_calls, Source source) const;
  [[nodiscard]] Value content_with_calls(Text text, std::span<const WrittenCall> calls, Source source) const;
  // Writes the reply, and the results behind it. Returns their number.
  std::size_t add_calls(const Draft& reply, const jinja::List& given, std::span<const Draft> following);
  // `is_first`: the message has the reply's content and thoughts.
  void add_reply(const Draft& reply, std::span<const WrittenCall> calls, bool is_first);
  // `call` is null if the result belongs to no known call.
  void add_result(const Draft& result, const CallName* call);

  const MessageStyle& style_;
  std::vector<Value> values_;
  std::map<std::string, CallName, std::less<>> known_;  // The calls so far by the ids that the client knows.
  std::size_t calls_count_ = 0;
};

Value ConversationWriter::arguments_of(const Value& function, Source source) const {
  source.part = PromptPart::call;
  const Value* given = field_of(function, "arguments");
  if (given == nullptr || given->as_text() == nullptr)
    return given == nullptr ? Value::dict(std::vector<Value::Entry>()) : *given;
  const std::string& text = given->as_text()->bytes();
  const bool is_blank = text.find_first_not_of(" \t\n\r") == std::string::npos;
  const auto object = jinja::read_json(is_blank ? std::string_view("{}") : std::string_view(text), source);
  if (!object || object->as_dict() == nullptr) {
    if (style_.takes_broken_arguments) return *given;
    return Value::dict(std::vector<Value::Entry>{{"arguments", *given}});
  }
  if (style_.are_arguments_objects) return *object;
  // Written again, so that a conversation has one text whatever the spaces of the client's JSON.
  jinja::Budget budget(UINT64_MAX, UINT64_MAX);  // Unlimited, because the request's size is bounded.
  return input_of(jinja::to_json(*object, {}, budget).bytes(), source);
}

const CallName* ConversationWriter::known_call(const Draft& result) const {
  const auto known = known_.find(given_id_of(result));
  return known == known_.end() ? nullptr : &known->second;
}

WrittenCall ConversationWriter::call_of(const Value& given, Source source) {
  WrittenCall call;
  const Value* function = field_of(given, "function");
  call.given_id = text_field_of(given, "id");
  if (function != nullptr) call.name.name = text_field_of(*function, "name");
  call.name.id = id_in_form(style_.ids, call.given_id, call.name.name, calls_count_++);
  known_.insert_or_assign(call.given_id, call.name);
  call.arguments = function == nullptr ? Value::dict(std::vector<Value::Entry>()) : arguments_of(*function, source);
  return call;
}

Value ConversationWriter::content_value(Text content, std::string_view thoughts, bool has_calls, Source source) const {
  if (!thoughts.empty() && has_calls && !style_.has_content_beside_thoughts) content = {};
  if (style_.thoughts_field.empty() && !thoughts.empty()) {
    std::vector<Value> parts;
    parts.push_back(Value::dict(std::vector<Value::Entry>{
        {"type", Value::text("thinking")}, {"thinking", input_of(thoughts, {source.message, PromptPart::reasoning})}}));
    if (content.size() > 0) {
      parts.push_back(
          Value::dict(std::vector<Value::Entry>{{"type", Value::text("text")}, {"text", Value::text(std::move(content))}}));
    }
    return Value::list(std::move(parts));
  }
  if (content.size() == 0 && has_calls && style_.is_empty_content_none) return Value::none();
  return Value::text(std::move(content));
}

Value ConversationWriter::content_with_calls(Text text, std::span<const WrittenCall> calls, Source source) const {
  std::vector<CalledFunction> functions;
  for (const WrittenCall& call : calls) functions.push_back({call.name.id, call.name.name, call.arguments});
  if (text.size() > 0) text.append("\n");
  text.append(written_calls(*style_.calls_in_content, functions, {source.message, PromptPart::call}));
  return Value::text(std::move(text));
}

void ConversationWriter::add_reply(const Draft& reply, std::span<const WrittenCall> calls, bool is_first) {
  const std::string thoughts = is_first && reply.extra ? text_field_of(*reply.extra, kThoughts) : "";
  std::vector<Value::Entry> fields;
  fields.emplace_back("role", Value::text(reply.role));
  Text content = is_first ? content_of(reply) : Text();
  if (!calls.empty() && style_.calls_in_content != nullptr) {
    fields.emplace_back("content", content_with_calls(std::move(content), calls, reply.source));
    calls = {};
  } else {
    fields.emplace_back("content", content_value(std::move(content), thoughts, !calls.empty(), reply.source));
  }
  if (!thoughts.empty() && !style_.thoughts_field.empty())
    fields.emplace_back(std::string(style_.thoughts_field), input_of(thoughts, {reply.source.message, PromptPart::reasoning}));
  if (!calls.empty()) {
    std::vector<Value> list;
    for (const WrittenCall& call : calls) list.push_back(call_value(call, reply.source));
    fields.emplace_back("tool_calls", Value::list(std::move(list)));
  }
  if (reply.extra) {
    for (const auto& [key, field] : reply.extra->as_dict()->entries) {
      if (key->bytes() != kThoughts && key->bytes() != "tool_calls") fields.emplace_back(key->bytes(), field);
    }
  }
  values_.push_back(Value::dict(std::move(fields)));
}

void ConversationWriter::add_result(const Draft& result, const CallName* call) {
  std::vector<Value::Entry> fields;
  fields.emplace_back("role", Value::text(result.role));
  fields.emplace_back("content", Value::text(content_of(result)));
  // The last of several entries with equal keys counts: the name that the client gave, but not its id.
  if (call != nullptr && !call->name.empty()) fields.emplace_back("name", input_of(call->name, result.source));
  if (result.extra) {
    for (const auto& [key, field] : result.extra->as_dict()->entries) fields.emplace_back(key->bytes(), field);
  }
  std::string id = call == nullptr ? "" : call->id;
  // Clients that shorten a history leave calls out, and their results keep the client's ids.
  if (call == nullptr && style_.ids == CallIds::nine && !given_id_of(result).empty())
    id = id_in_form(style_.ids, given_id_of(result), "", 0);
  if (!id.empty()) fields.emplace_back("tool_call_id", input_of(id, result.source));
  values_.push_back(Value::dict(std::move(fields)));
}

std::size_t ConversationWriter::add_calls(const Draft& reply, const jinja::List& given, std::span<const Draft> following) {
  std::vector<WrittenCall> calls;
  for (const Value& call : given.items) calls.push_back(call_of(call, reply.source));
  OpenCalls open(calls);
  std::vector<const Draft*> others;  // Results of no call of this reply.
  std::size_t results = 0;
  std::vector<const Draft*> unmatched;
  for (; results < following.size() && following[results].role == "tool"; ++results) {
    const Draft& result = following[results];
    const std::string id = given_id_of(result);
    if (WrittenCall* call = id.empty() ? nullptr : open.next(id)) {
      call->result = &result;
    } else {
      unmatched.push_back(&result);
    }
  }
  // The ids of calls or of results may have been lost or replaced; then their order counts.
  for (const Draft* result : unmatched) {
    WrittenCall* call = known_call(*result) == nullptr ? open.next("") : nullptr;
    if (call != nullptr) {
      call->result = result;
    } else {
      others.push_back(result);
    }
  }
  const std::size_t calls_per_message = style_.has_parallel_calls ? calls.size() : 1;
  for (std::size_t i = 0; i < calls.size(); i += calls_per_message) {
    const auto part = std::span(calls).subspan(i, calls_per_message);
    add_reply(reply, part, i == 0);
    for (const WrittenCall& call : part) {
      if (call.result != nullptr) add_result(*call.result, &call.name);
    }
  }
  for (const Draft* other : others) add_result(*other, known_call(*other));
  return results;
}

std::vector<Value> ConversationWriter::write(std::span<const Draft> drafts) {
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    const Draft& draft = drafts[i];
    if (const Value* calls = calls_of(draft)) {
      i += add_calls(draft, *calls->as_list(), drafts.subspan(i + 1));
    } else if (draft.role == "tool") {
      add_result(draft, known_call(draft));
    } else {
      add_reply(draft, {}, true);
    }
  }
  return std::move(values_);
}

}  // namespace

std::vector<Value> message_values(std::span<const ChatMessage> messages, const MessageStyle& style,
                                  const ReplyFormat* refused) {
  const std::vector<Draft> drafts = drafts_of(messages, style, refused);
  return ConversationWriter(style).write(drafts);
}

}  // namespace uma::chat
