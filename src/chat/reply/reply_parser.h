// Splits the streamed text of a reply into reasoning, content and tool calls, by the notation of the model's family (family.h).
// It holds back only undecided text: the beginning of a mark, and a call until its function's name is known.
// Malformed calls are content, unchanged. If a call goes wrong after its arguments have begun, the emitted part remains a call,
// and the rest is content. The result does not depend on how the text is divided into pieces.
// The members are the state of one reader of characters; it is not divided, since each state leads to any other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/calls/argument_reader.h"
#include "chat/calls/call_pattern.h"
#include "chat/calls/parameter_types.h"
#include "chat/family.h"
#include "core/event.h"
#include "core/ids.h"

namespace uma::chat {

// Tools by name, with the types of their parameters.
using Tools = std::map<std::string, ParameterTypes, std::less<>>;

// The form of a reply: what the parser recognises in it.
struct ReplyFormat {
  const Family* family = nullptr;        // Null: thoughts only.
  std::shared_ptr<const Tools> tools{};  // Null: there are no calls.
  bool has_parallel_calls = true;
  bool waits_for_ids = false;          // A call is emitted once it is whole, since its id stands behind its arguments.
  Marks thoughts{};                    // Empty: there are none.
  bool keeps_thoughts = false;         // Thoughts are content, with their marks.
  bool begins_with_reasoning = false;  // The prompt has opened the reasoning.
  bool begins_with_blanks = false;     // Blanks before the content are the template's.
  bool has_answer = false;             // The content follows a grammar: once it has begun, nothing in it is a mark.
  std::string begun{};                 // The text of the reply that is in the prompt; it is read, but not given out.
  // Tokens with the texts of marks: control tokens, which a detokenizer hides, and user-defined ones.
  std::vector<std::pair<Token, std::string>> marks{};
  std::vector<Token> ends{};  // Tokens that end the reply (Family::ends).

  [[nodiscard]] bool is_plain() const {
    return tools == nullptr && thoughts.open.empty() && !begins_with_blanks &&
           (family == nullptr || (family->dropped.empty() && family->around.empty()));
  }
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
  // Ranges of the content in the whole pushed text, without ReplyFormat::begun, in order.
  std::vector<Place> content_places{};
  std::vector<ReplyPart> after;

  void clear();
};

class ReplyParser {
 public:
  // `seed` determines the ids of tool calls.
  ReplyParser(ReplyFormat format, std::uint64_t seed);

  // Takes whole UTF-8 characters.
  void push(std::string_view text, ReplyPieces& out);
  // Adds the text that was held back, at the end of the reply. `is_cut`: the reply ended at a limit, so an unfinished call
  // stays unfinished, without its undecided text, and the begin of a mark is dropped; otherwise a call that lacks only its
  // closing marks is whole.
  void finish(ReplyPieces& out, bool is_cut = false);

  // Whether the text so far, with `coming` behind it, ends in thoughts, also if they are kept as content. Calls in `coming` do
  // not count.
  [[nodiscard]] bool is_reasoning(std::string_view coming = {}) const;
  // The content in the text that is held back, with `coming` behind it. Requires: no thoughts, as above, and no call.
  [[nodiscard]] std::string undecided_content(std::string_view coming) const;
  // The number of thoughts that have ended in the text so far, with `coming` behind it.
  [[nodiscard]] std::size_t thoughts_ended(std::string_view coming) const;
  // The number of groups of calls that the text has left, and whether thoughts were around the last one.
  [[nodiscard]] std::size_t calls_left() const { return calls_left_; }
  [[nodiscard]] bool has_open_thoughts() const { return has_open_thoughts_; }
  // Whether the text so far ends in a call's arguments.
  [[nodiscard]] bool is_in_call() const { return state_ == State::call; }
  // Whether the text so far ends in the arguments of what is a call for sure.
  [[nodiscard]] bool is_in_known_call() const {
    return is_in_call() && (is_emitted_ || !form_->form->needs_known_name || (!call_.name.empty() && is_known(call_.name)));
  }
  // Whether a reply without parallel calls has had its only call, with its closing marks: the template writes those, too.
  [[nodiscard]] bool has_ended() const;

  // Whether the last text may belong to a tool call.
  [[nodiscard]] bool may_be_in_call() const {
    return state_ == State::call || state_ == State::after_call ||
           (undecided_ && undecided_->opener->kind == Opener::Kind::call);
  }
  // The text of a tool call that has begun and is not emitted yet, from its mark on. Nothing: there is no such call.
  [[nodiscard]] std::optional<std::string> begun_call() const;

  // The whole reasoning so far, and all calls so far, each with the arguments so far.
  [[nodiscard]] const std::string& reasoning() const { return reasoning_; }
  [[nodiscard]] const std::vector<ReplyPart>& calls() const { return calls_; }
  // The fields for reasoning and calls in a message; empty: none (ChatMessage::extra).
  [[nodiscard]] std::string message_extra() const;

 private:
  enum class State : std::uint8_t {
    reasoning,
    content,
    call,        // In the arguments of a call.
    after_call,  // Behind a call, before a possible next call.
  };
  // A mark that the parser looks for.
  struct Opener {
    enum class Kind : std::uint8_t {
      thoughts,
      thoughts_end,  // The end of thoughts that a call has ended.
      call,
      dropped,
      around_begin,
      around_end,
    };
    Kind kind = Kind::thoughts;
    Pattern pattern;
    const CallForm* form = nullptr;
    const Marks* around = nullptr;
  };
  // A form of calls, divided into its parts.
  struct Form {
    const CallForm* form = nullptr;
    Pattern head{};                           // The call up to its arguments.
    Pattern tail{};                           // The call behind its arguments.
    std::string_view separator{};             // Between two calls, without whitespace.
    std::vector<std::string_view> closers{};  // Texts that may follow the arguments, in order.
    std::size_t closers_of_call = 0;          // The first of them end the call, the others all calls.
  };
  // The first opener in a text.
  struct Place {
    std::size_t at = 0;  // The text before it is decided.
    Found found = Found::no;
    const Opener* opener = nullptr;
    CallHead head{};
  };

  void add_openers();
  void add_form(const CallForm& form);
  void add_opener(Opener opener);
  [[nodiscard]] bool step(ReplyPieces& out);
  [[nodiscard]] bool step_reasoning(ReplyPieces& out);
  // The text that follows the end of the thoughts; nothing: they go on.
  [[nodiscard]] std::optional<std::string> behind_thoughts(std::string_view coming) const;
  [[nodiscard]] bool step_content(ReplyPieces& out);
  [[nodiscard]] bool step_call(ReplyPieces& out);
  [[nodiscard]] bool step_after_call();

  [[nodiscard]] bool finds_calls() const;
  [[nodiscard]] bool is_known(std::string_view name) const { return format_.tools->contains(name); }
  [[nodiscard]] bool may_open(const Opener& opener, bool is_next) const;
  [[nodiscard]] CallHead head_of(const Pattern& pattern, const CallForm* form, std::string_view text) const;
  [[nodiscard]] bool may_be_raw(std::string_view name) const;
  // `blanks`: the whitespace at the begin of `text`.
  [[nodiscard]] Place find_opener(std::string_view text, std::size_t blanks) const;
  [[nodiscard]] bool skips_blanks();
  // The length of the whitespace at the begin of held_. A model can write much of it, which is held back until something
  // follows, so it is read once.
  [[nodiscard]] std::size_t held_blanks();
  void drop_held(std::size_t bytes);
  [[nodiscard]] const Form& form_of(const CallForm& form) const;
  [[nodiscard]] std::size_t taken() const { return pushed_ - held_.size(); }

  void take_mark(const Opener& opener);
  void begin_call(const CallForm& form, CallHead head, std::size_t begin, std::size_t end);
  [[nodiscard]] std::unique_ptr<ArgumentReader> make_reader(const Form& form) const;
  // Whether the current call means that nothing is called (Family::no_calls).
  [[nodiscard]] bool stands_for_none() const;
  [[nodiscard]] bool emit_call();
  [[nodiscard]] std::string id_of_call() const;
  void end_call();
  [[nodiscard]] bool is_dropped_mark(std::string_view text) const;
  void give_up_call(ReplyPieces& out);
  // Whether this text, with which the mark may begin, is hardly anything else.
  [[nodiscard]] static bool has_begun_mark(const Pattern& pattern, std::string_view text);
  void drop_begun_mark();
  [[nodiscard]] bool skip_closers();
  void flush_arguments(ReplyPieces& out);
  // `begin` is the position of the text in the whole pushed text.
  void add_content(std::string_view text, ReplyPieces& out, std::size_t begin);
  void add_reasoning(std::string_view text, ReplyPieces& out, std::size_t begin);
  void append_content(std::string_view text, ReplyPieces& out, std::size_t begin);
  // The part of a text that is behind ReplyFormat::begun, and its position there.
  [[nodiscard]] std::string_view without_begun(std::string_view text, std::size_t& begin) const;
  static void add_part(ReplyPart part, ReplyPieces& out);

  const ReplyFormat format_;
  const std::uint64_t seed_;
  std::vector<Opener> openers_;
  std::vector<Form> forms_;
  std::vector<std::string> spaced_names_;  // Tools with blanks in their names.
  std::string first_bytes_;                // First bytes of all openers.
  bool drops_marks_ = false;               // There are marks in or around content.

  State state_ = State::content;
  std::string held_;                // Undecided text.
  std::size_t blanks_known_ = 0;    // Bytes at the begin of held_ that are known to be whitespace.
  std::size_t pushed_ = 0;          // Bytes of all pushed text, including held_ and ReplyFormat::begun.
  std::size_t begun_bytes_ = 0;     // Bytes of ReplyFormat::begun.
  bool skips_blanks_ = false;       // Skip whitespace before the following reasoning or content.
  bool is_at_start_ = true;         // No content and no call so far.
  bool may_think_ = true;           // Thoughts may begin here.
  bool is_first_thought_ = false;   // The reasoning has no text so far.
  bool has_open_thoughts_ = false;  // A call has ended thoughts, whose own end may follow.
  bool is_in_answer_ = false;       // The content has begun (ReplyFormat::has_answer).
  std::size_t thoughts_ended_ = 0;
  std::size_t calls_left_ = 0;
  const Marks* around_ = nullptr;           // The marks around the content whose first was found and whose second was not.
  std::vector<const Marks*> around_taken_;  // Pairs of Family::around whose first mark was found.
  std::optional<Place> undecided_{};        // The opener that may begin in held_.

  std::string reasoning_;
  std::vector<ReplyPart> calls_;

  // The current call.
  const Form* form_ = nullptr;
  std::unique_ptr<ArgumentReader> reader_;
  CallText call_;
  std::string call_text_;  // All its text so far, which becomes content if it is malformed; empty once emitted.
  bool is_in_thoughts_ = false;
  bool is_emitted_ = false;
  std::size_t arguments_emitted_ = 0;
  std::uint64_t closers_found_ = 0;  // Bit n: Form::closers[n] was found behind the call.
};

}  // namespace uma::chat
