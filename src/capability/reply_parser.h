// Splits the text of a reply, as it comes, into what the model thinks, what it says and the tools that it calls. Holds back no
// more than could still be something else: the beginning of a mark, and a call until it has its function's name.
//
// What is malformed is content, as it was written. Of a call whose arguments had begun before they went wrong, what was told
// stays; the rest is content. The text is cut anywhere: how it comes in changes nothing of what comes out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "capability/json_scanner.h"
#include "core/event.h"
#include "core/ids.h"

namespace uma::capability {

// How a model writes the calls of tools.
enum class CallSyntax : std::uint8_t {
  none,      // it has no tools
  tagged,    // <tool_call>{"name": …, "arguments": {…}}</tool_call>: Hermes, Qwen, and who is told to
  llama3,    // {"name": …, "parameters": {…}}, the whole reply or behind <|python_tag|>
  mistral,   // [TOOL_CALLS][{"name": …, "arguments": {…}}, …], and [TOOL_CALLS]name[ARGS]{…}
  deepseek,  // <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>…
};

// What to look for in a reply.
struct ReplyFormat {
  CallSyntax calls = CallSyntax::none;
  std::vector<std::string> tools{};  // their names
  bool has_parallel_calls = true;
  std::string_view think_open{};  // around what the model thinks first; empty: it does not. Static storage
  std::string_view think_close{};
  bool begins_thinking = false;  // the prompt has opened the section
  // Control tokens that stand for marks: a detokenizer hides them.
  std::vector<std::pair<Token, std::string>> marks{};

  [[nodiscard]] bool is_plain() const { return calls == CallSyntax::none && think_open.empty(); }
};

// What a text has made certain, in the order of the reply.
struct ReplyPieces {
  std::vector<ReplyPart> before;  // the content
  std::string content;
  struct Place {
    std::size_t begin = 0;
    std::size_t end = 0;
    bool operator==(const Place&) const = default;
  };
  std::vector<Place> content_places{};  // of the content in all the text that was pushed, in order
  std::vector<ReplyPart> after;

  void clear();
};

class ReplyParser {
 public:
  // The ids of calls are drawn from `seed`.
  ReplyParser(ReplyFormat format, std::uint64_t seed);

  // Whole UTF-8 characters.
  void push(std::string_view text, ReplyPieces& out);
  // The reply has ended: adds what was held back.
  void finish(ReplyPieces& out);

  [[nodiscard]] bool is_thinking() const { return state_ == State::thinking; }
  // Where calls are not parallel: there was one, so the reply is over.
  [[nodiscard]] bool has_ended() const {
    return !format_.has_parallel_calls && !calls_.empty() && (state_ == State::after_call || state_ == State::content);
  }

  // All that has come of a call behind its mark, while it is none that was told yet. A call without a mark has begun with the
  // name of a tool. Nothing: none has begun.
  [[nodiscard]] std::optional<std::string> begun_call() const;

  // All of it so far. The calls that have begun, each with all of its arguments that came.
  [[nodiscard]] const std::string& reasoning() const { return reasoning_; }
  [[nodiscard]] const std::vector<ReplyPart>& calls() const { return calls_; }
  // The fields of a message that say this; empty: there are none (ChatMessage::extra).
  [[nodiscard]] std::string message_extra() const;

 private:
  enum class State : std::uint8_t {
    start,     // nothing but blanks so far
    thinking,  // inside the section
    content,
    intro,       // behind the mark of a call, before its JSON
    body,        // in the JSON of a call
    after_call,  // behind it, where the next can follow
  };
  enum class Found : std::uint8_t { no, maybe, yes };
  // How the text between a mark and a call's JSON reads.
  struct Intro {
    Found found = Found::no;
    std::size_t length = 0;
    std::string name{};    // where it stands there and not in the JSON
    bool is_list = false;  // JSON in an array
  };

  [[nodiscard]] bool step(ReplyPieces& out);
  [[nodiscard]] bool step_start();
  [[nodiscard]] bool step_thinking(ReplyPieces& out);
  [[nodiscard]] bool step_content(ReplyPieces& out);
  [[nodiscard]] bool step_intro(ReplyPieces& out);
  [[nodiscard]] bool step_body(ReplyPieces& out);
  [[nodiscard]] bool step_after_call();

  [[nodiscard]] bool finds_calls() const;
  [[nodiscard]] std::size_t taken() const { return pushed_ - held_.size(); }
  [[nodiscard]] Intro read_intro() const;
  [[nodiscard]] Intro read_mistral_intro(std::size_t blanks) const;
  [[nodiscard]] Intro read_deepseek_intro(std::size_t blanks) const;
  // Takes one character of a call's JSON; false: it is malformed.
  [[nodiscard]] bool take_body(char c);
  [[nodiscard]] bool take_member(char c, JsonScanner::Place before);
  [[nodiscard]] bool tell_call();
  [[nodiscard]] bool end_call();
  void begin_call(const Intro& intro);
  void give_up_call(ReplyPieces& out);
  void flush_arguments(ReplyPieces& out);
  // `begin`: of the text in all that was pushed.
  void add_content(std::string_view text, ReplyPieces& out, std::size_t begin);
  void add_reasoning(std::string_view text, ReplyPieces& out);
  static void add_part(ReplyPart part, ReplyPieces& out);

  const ReplyFormat format_;
  const std::uint64_t seed_;
  State state_;
  std::string held_;          // not taken yet
  std::size_t pushed_ = 0;    // bytes, with it
  bool skips_blanks_ = true;  // of what follows: thinking, content
  bool is_at_start_ = true;   // no content so far

  std::string reasoning_;
  std::vector<ReplyPart> calls_;

  // The call that is being read.
  std::string call_text_;       // all of it, as content if it fails; empty once it was told
  std::size_t mark_bytes_ = 0;  // of it, to the end of the mark; 0: it has none
  bool is_in_list_ = false;
  bool is_told_ = false;
  JsonScanner scanner_;
  std::string name_;
  std::string key_;     // of the member of the JSON that is being read
  std::string string_;  // as it is written, the key or the name, while it comes
  enum class Member : std::uint8_t { none, key, name, arguments } member_ = Member::none;
  bool is_arguments_alone_ = false;  // the JSON is not around them
  bool is_body_complete_ = false;
  bool has_arguments_ = false;
  std::string arguments_;
  std::size_t arguments_told_ = 0;
};

}  // namespace uma::capability
