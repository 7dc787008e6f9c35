// Conversions between texts and the tokens of a model, without a generation.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/ids.h"
#include "core/work/tenant_budget.h"

namespace uma {

struct TokenizeRequest {
  std::string model;  // Empty: the default model.
  std::string text;
  bool adds_special = false;   // The text begins a chain: with BOS, and the leading space of some tokenizers.
  bool parses_special = true;  // The text of control tokens becomes these tokens.
  bool wants_texts = false;    // The result has the text of each token.
  RequestShare share{};        // Memory of the request and of its result.
};

struct TokenizedText {
  std::vector<Token> tokens;
  // If wanted: the texts of all tokens, one after the other, and the end of each. A text may be a part of a character.
  std::string text{};
  std::vector<std::size_t> text_ends{};
  RequestShare share{};
};

struct DetokenizeRequest {
  std::string model;  // Empty: the default model.
  std::vector<Token> tokens;
  RequestShare share{};  // See TokenizeRequest::share.
};

struct ConvertedText {
  std::string text;
  RequestShare share{};
};

[[nodiscard]] std::size_t memory_of(const TokenizeRequest& request);
[[nodiscard]] std::size_t memory_of(const DetokenizeRequest& request);

}  // namespace uma
