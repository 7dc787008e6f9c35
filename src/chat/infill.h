// The prompt of a text with a gap, in the form that models for code are trained on:
//
//   BOS [repository] NAME [file] NAME TEXT ... [file] NAME [prefix] TEXT [suffix] TEXT [middle] TEXT
//
// The words in brackets are control tokens. Without other files, the prompt begins with [prefix].
#pragma once

#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/request.h"
#include "llm/model.h"

namespace uma::chat {

// `prefix` is the text before the gap. With `parse_special` the names of control tokens in the texts become these tokens.
// Errors: E_MODEL_003 if the vocabulary has no marks.
[[nodiscard]] Expected<std::vector<Token>> tokenize_infill(const llm::Vocab& vocab, std::string_view prefix,
                                                           const Infill& infill, bool parse_special = false);

}  // namespace uma::chat
