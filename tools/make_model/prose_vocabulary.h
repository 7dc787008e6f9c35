// A vocabulary for long prompts of coding agents: about three bytes of English, code or JSON a token. Texts of other kinds are
// divided into characters and bytes, so every byte string can be tokenized.
//
// The tokenizer ("llama", SentencePiece) merges two neighbours whose union is a token. Every beginning of a listed word is a
// token, so the word grows from its first letter until it is whole.
#pragma once

#include <span>
#include <string_view>

#include "make_model/vocabulary.h"

namespace uma {

// <unk>, <s> and </s> (kTokenUnknown, kTokenBos, kTokenEos), the 256 bytes (from kTokenOfByteZero), `control_tokens`, then
// plain tokens. The tokens of printable ASCII bytes, tab and newline are never the result of tokenizing, because these
// characters have tokens of their own.
[[nodiscard]] Vocabulary make_prose_vocabulary(std::span<const std::string_view> control_tokens);

inline constexpr std::int32_t kTokenOfByteZero = 3;

}  // namespace uma
