// The probabilities of the next token as a value, and the rule that verifies a draft token: Leviathan, Kalman, Matias, "Fast
// Inference from Transformers via Speculative Decoding" (ICML 2023). Pure except for the random numbers.
#pragma once

#include <vector>

#include "base/random.h"
#include "core/ids.h"

namespace uma::llm {

struct TokenChance {
  Token token = 0;
  double chance = 0;
};

// Sorted by token, each token at most once, every chance > 0, sum 1. A missing token has the chance 0.
using Distribution = std::vector<TokenChance>;

// The chance of `token`, 0 if it is missing. O(log n).
[[nodiscard]] double chance_of(const Distribution& distribution, Token token);

// Draws one token. Requires: a distribution that is not empty.
[[nodiscard]] Token draw(const Distribution& distribution, Random& random);

// Returns a token that is distributed as `wanted`, given that `drafted` was drawn from `draft` with other random numbers:
// `drafted` with chance min(1, wanted(drafted) / draft(drafted)), else a draw from max(0, wanted - draft), normalised. The
// result equals `drafted` only if the draft token was accepted. Requires: draft(drafted) > 0. O(size of both).
[[nodiscard]] Token verify_drafted(const Distribution& wanted, const Distribution& draft, Token drafted, Random& random);

}  // namespace uma::llm
