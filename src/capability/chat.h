// Turns what users write into the tokens that continue a chain. Text of users never becomes special tokens; the text of
// templates does. Pure; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/request.h"
#include "llm/model.h"

namespace uma::capability {

// Tokens of `text` at the end of a chain, or, where `at_start`, of a new one: there BOS and the tokenizer's leading space come
// first.
[[nodiscard]] Expected<std::vector<Token>> tokenize_text(const llm::Vocab& vocab, std::string_view text, bool at_start);

struct ChatTokens {
  std::vector<Token> tokens;
  // The template rewrote what came before, so `tokens` are the whole conversation and replace the chain.
  bool replaces_chain = false;
  // Where `tokens` are a whole conversation: those up to the end of its system prompt, BOS at least.
  std::int32_t system_tokens = 0;
};

// Tokens that bring a chain holding `history` to the point where the model answers `added`. `history` ends with a reply, whose
// text ends the chain: the template's end of turn comes with the next delta, so that a reply can still be continued.
// Errors: E_MODEL_003 when the template cannot be applied.
[[nodiscard]] Expected<ChatTokens> tokenize_chat(const llm::Model& model, std::span<const ChatMessage> history,
                                                 std::span<const ChatMessage> added);

// Stop strings a chat needs beside the model's own end tokens: where ChatML stands in for a missing template, its end of turn.
[[nodiscard]] std::vector<std::string> chat_stop_strings(const llm::Model& model);

}  // namespace uma::capability
