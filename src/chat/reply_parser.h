// Splits the streamed text of a reply into reasoning, content and tool calls. It holds back only undecided text: the beginning
// of a mark, and a call until its function's name is known.
// Malformed calls are content, unchanged. If a call goes wrong after its arguments have begun, the emitted part remains a call,
// and the rest is content. The result does not depend on how the text is divided into pieces.
// The members are the state of one reader of characters; it is not divided, since each state leads to any other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/json_scanner.h"
#include "core/event.h"
#include "core/ids.h"

namespace uma::chat {

// The notation of a model's tool calls.
enum class CallSyntax : std::uint8_t {
  none,      // The model has no tools.
  tagged,    // <tool_call>{"name": …, "arguments": {…}}</tool_call>: Hermes, Qwen, and models whose prompt explains it.
  llama3,    // {"name": …, "parameters": {…}}, the whole reply or behind <|python_tag|>
  mistral,   // [TOOL_CALLS][{"name": …, "arguments": {…}}, …], and [TOOL_CALLS]name[ARGS]{…}
  deepseek,  // <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>…
};

// The parts of a reply that the parser recognises.
struct ReplyFormat {
  CallSyntax calls = CallSyntax::none;
  std::vector<std::string> tools{};  // Names of the tools.
  bool has_parallel_calls = true;
  std::string_view reasoning_open{};  // Marks around the reasoning; empty: the model has none. Static storage.
  std::string_view reasoning_close{};
  bool begins_with_reasoning = false;  // The prompt has opened the reasoning.
  // Control tokens with the texts of marks; a detokenizer hides them.
  std::vector<std::pair<Token, std::string>> marks{};

  [[nodiscard]] bool is_plain() const { return calls == CallSyntax::none && reasoning_open.empty(); }
};

// The decided parts of a reply, in order.
struct ReplyPieces {
  std::vector<ReplyPart> before;  // Parts that come before the content.
  std::string content;
  struct Place {
    std::size_t begin = 0;
    std::size_t end = 0;
    bool operator==(const Place&) const = default;
  };
  std::vector<Place> content_places{};  // Ranges of the content in the whole pushed text, in order.
  std::vector<ReplyPart> after;

  void clear();
};

class ReplyParser {
 public:
  // `seed` determines the ids of tool calls.
  ReplyParser(ReplyFormat format, std::uint64_t seed);

  // Takes whole UTF-8 characters.
  void push(std::string_view text, ReplyPieces& out);
  // Adds the text that was held back, at the end of the reply.
  void finish(ReplyPieces& out);

  [[nodiscard]] bool is_reasoning() const { return state_ == State::reasoning; }
  // Whether a reply without parallel calls has had its only call.
  [[nodiscard]] bool has_ended() const {
    return !format_.has_parallel_calls && !calls_.empty() && (state_ == State::after_call || state_ == State::content);
  }

  // The text behind the mark of a tool call that is not emitted yet. A call without a mark begins with the name of a tool.
  // Nothing: there is no such call.
  [[nodiscard]] std::optional<std::string> begun_call() const;

  // The whole reasoning so far, and all calls so far, each with the arguments so far.
  [[nodiscard]] const std::string& reasoning() const { return reasoning_; }
  [[nodiscard]] const std::vector<ReplyPart>& calls() const { return calls_; }
  // The fields for reasoning and calls in a message; empty: none (ChatMessage::extra).
  [[nodiscard]] std::string message_extra() const;

 private:
  enum class State : std::uint8_t {
    start,      // Only whitespace so far.
    reasoning,  // Inside the reasoning section.
    content,
    intro,       // Behind the mark of a call, before its JSON.
    body,        // In the JSON of a call.
    after_call,  // Behind a call, before a possible next call.
  };
  enum class Found : std::uint8_t { no, maybe, yes };
  // The text between a mark and a call's JSON.
  struct Intro {
    Found found = Found::no;
    std::size_t length = 0;
    std::string name{};    // Empty if the JSON has the name.
    bool is_list = false;  // The JSON is in an array.
  };

  [[nodiscard]] bool step(ReplyPieces& out);
  [[nodiscard]] bool step_start();
  [[nodiscard]] bool step_reasoning(ReplyPieces& out);
  [[nodiscard]] bool step_content(ReplyPieces& out);
  [[nodiscard]] bool step_intro(ReplyPieces& out);
  [[nodiscard]] bool step_body(ReplyPieces& out);
  [[nodiscard]] bool step_after_call();

  [[nodiscard]] bool finds_calls() const;
  [[nodiscard]] std::size_t taken() const { return pushed_ - held_.size(); }
  [[nodiscard]] Intro read_intro() const;
  [[nodiscard]] Intro read_mistral_intro(std::size_t blanks) const;
  [[nodiscard]] Intro read_deepseek_intro(std::size_t blanks) const;
  // Takes one character of a call's JSON. False: it is malformed.
  [[nodiscard]] bool take_body(char c);
  [[nodiscard]] bool take_member(char c, JsonScanner::Place before);
  [[nodiscard]] bool emit_call();
  [[nodiscard]] bool end_call();
  void begin_call(const Intro& intro);
  void give_up_call(ReplyPieces& out);
  void flush_arguments(ReplyPieces& out);
  // `begin` is the position of the text in the whole pushed text.
  void add_content(std::string_view text, ReplyPieces& out, std::size_t begin);
  void add_reasoning(std::string_view text, ReplyPieces& out);
  static void add_part(ReplyPart part, ReplyPieces& out);

  const ReplyFormat format_;
  const std::uint64_t seed_;
  State state_;
  std::string held_;          // Undecided text.
  std::size_t pushed_ = 0;    // Bytes of all pushed text, including held_.
  bool skips_blanks_ = true;  // Skip whitespace before the following reasoning or content.
  bool is_at_start_ = true;   // No content so far.

  std::string reasoning_;
  std::vector<ReplyPart> calls_;

  std::string call_text_;  // The whole text of the current call, which becomes content if it is malformed; empty once emitted.
  std::size_t mark_bytes_ = 0;  // Length up to the end of the mark; 0: no mark.
  bool is_in_list_ = false;
  bool is_emitted_ = false;
  JsonScanner scanner_;
  std::string name_;
  std::string key_;     // Key of the current member of the JSON.
  std::string string_;  // The current key or name, still escaped.
  enum class Member : std::uint8_t { none, key, name, arguments } member_ = Member::none;
  bool is_arguments_alone_ = false;  // The JSON has the arguments only.
  bool is_body_complete_ = false;
  bool has_arguments_ = false;
  std::string arguments_;
  std::size_t arguments_emitted_ = 0;
};

}  // namespace uma::chat
