// Weights that follow a script: reply by a text, by a call of a tool, or by an answer that quotes the result of that call. All
// other logits are 40 below that of the right token, so a reply does not depend on rounding, on other sequences in the batch,
// on the kind of CPU or, up to a temperature of 2, on chance.
//
// **Scripted texts.** Each piece of a scripted text is a token of its own, which ordinary text never or seldom becomes. So the
// last token alone says which one follows: its row of the embedding has the code of its successor. A code is the number of a
// token in 13 bits, written as 1 and -1. The logit of a token is the product of its code and the numbers at kPlaceNext.
//
// **The reply's kind.** A reply begins behind the token of the assistant's turn. In layer 0 every token attends to the mark of
// a result (score 120), else to the mark of the offered tool (80), else to <s> (40); all other tokens have score 0. The
// feed-forward block adds the code of the first token of the answer, of the call or of the plain reply.
//
// **Counting.** The quotation needs the distance of a token from the quote's mark, and of a token of the answer from the last
// but one token of the answer's prefix; these two tokens are origins. Layers 1 to 6 count to 63 in binary. Before layer l, a
// token knows its distance from the nearest origin if that is less than 2^(l-1). A token that does not know it attends to the
// token 2^(l-1) before it, and takes its flags and bits; bit l-1 is set if that token knows its own distance. A token that
// knows it attends to <s> and takes nothing. Rotary positions make the score of one distance the highest (rotary_angles.h).
//
// **Copying.** In layer 7, a token of the answer that has distance n attends to the token that has distance n behind the
// quote's mark, compared bit by bit, and copies its code. So the last token of the prefix (n = 1) is followed by the first
// token of the quotation. Tokens that end a quotation (a newline, the end of the message) have the code of the full stop
// instead. The same follows if there is no quote's mark in the result, because then <s> has the highest score, and at
// distance 63.
//
// hand_layer.h has what layers with weights set by hand share.
#pragma once

#include <cstdint>
#include <vector>

#include "make_model/gguf_writer.h"

namespace uma {

inline constexpr std::uint32_t kScriptedLayers = 8;
inline constexpr std::uint32_t kScriptedWidth = 64;  // Width of the residual stream and of the only head.
inline constexpr std::uint32_t kScriptedFeedForward = 32;
inline constexpr std::int64_t kScriptedTokensMax = 1 << 13;
inline constexpr std::int64_t kQuotedTokensMax = 62;

// The parts that tokens have in a script.
struct ScriptedTokens {
  struct Token {
    std::int64_t next = -1;   // The scripted token that follows; -1: not scripted.
    bool ends_quote = false;  // A quotation ends before it.
  };
  std::vector<Token> tokens;   // By id.
  std::int64_t begin = 0;      // <s>
  std::int64_t end = 0;        // The end of a message.
  std::int64_t turn_mark = 0;  // Opens the assistant's turn.
  std::int64_t tool_mark = 0;  // In the prompt if the tool is offered.
  std::int64_t result_mark = 0;
  std::int64_t quote_mark = 0;  // The quotation follows it; counts behind the result's mark only, which it may be itself.
  std::int64_t call = 0;        // The first tokens of the scripted texts.
  std::int64_t answer = 0;
  std::int64_t plain_answer = 0;
  std::int64_t before_last_of_prefix = 0;  // The last but one token of the answer's prefix.
  std::int64_t full_stop = 0;
};

// Returns all matrices of a model of architecture llama with these dimensions. Requires at most kScriptedTokensMax tokens.
[[nodiscard]] std::vector<Matrix> list_scripted_matrices(const ScriptedTokens& script);

}  // namespace uma
