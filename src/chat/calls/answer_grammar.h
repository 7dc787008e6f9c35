// The grammar of a reply whose text follows a client's grammar or schema: thoughts, the marks of the family before an answer,
// and the answer; or calls of tools.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "chat/reply/reply_parser.h"
#include "grammar/grammar.h"

namespace uma::chat {

// A place in a reply from which the grammar goes on.
enum class ReplyPlace : char {
  begin = 'b',
  behind_thoughts = 't',
  behind_calls = 'c',
  behind_call_in_thoughts = 'i',  // The thoughts may still be closed.
};

struct AnswerRules {
  const grammar::Grammar& answer;
  const grammar::Grammar* calls = nullptr;  // Grammar of begun_call_grammar(); null: calls are only known by their marks.
  bool may_call = false;                    // The reply may have calls instead of the answer.
  bool may_think = false;                   // The reply may open thoughts.
  bool may_begin_with_blanks = false;       // Blanks before the answer do not count, even if nothing precedes them.
};

struct AnswerGrammar {
  std::shared_ptr<const grammar::Grammar> grammar;  // Null: nothing may precede the answer, or take its place.
  bool has_calls = true;                            // False: beside the answer, calls are only known by their marks.
};

// A text of the grammar begins with a place, as text_at() writes it. Thoughts are opened by their mark, behind which any text
// may follow. Once a call was made, more calls may follow, and no answer.
// The calls of many tools may be too large for a reader's limits.
[[nodiscard]] AnswerGrammar answer_grammar(const ReplyFormat& format, const AnswerRules& rules);
// The text of the grammar for `text` at this place.
[[nodiscard]] std::string text_at(ReplyPlace place, std::string_view text);

// Whether such a grammar differs from that of the answer alone: something may precede the answer, or take its place.
[[nodiscard]] bool may_precede_answer(const ReplyFormat& format, bool may_call);
// Whether the answer itself may begin with the mark that opens thoughts, so that they are a part of it.
[[nodiscard]] bool has_thoughts(const ReplyFormat& format, const std::shared_ptr<const grammar::Grammar>& answer);

}  // namespace uma::chat
