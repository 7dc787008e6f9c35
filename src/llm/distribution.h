// The chances of the next token as a value, and the rule that verifies a token which a draft model drew: Leviathan, Kalman,
// Matias, "Fast Inference from Transformers via Speculative Decoding" (ICML 2023). Pure, but for the random numbers it draws.
#pragma once

#include <vector>

#include "base/random.h"
#include "core/ids.h"

namespace uma::llm {

struct TokenChance {
  Token token = 0;
  double chance = 0;
};

// In order of their tokens, each token once, every chance > 0, sum 1. Tokens that are not in it have none.
using Distribution = std::vector<TokenChance>;

// O(log n).
[[nodiscard]] double chance_of(const Distribution& distribution, Token token);

// Requires a distribution that is not empty.
[[nodiscard]] Token draw(const Distribution& distribution, Random& random);

// Returns a token that is distributed as `wanted`, given that `drafted` was drawn from `draft` with other random numbers:
// `drafted` with chance min(1, wanted(drafted) / draft(drafted)), else a draw from max(0, wanted - draft), normalised. It is
// equal to `drafted` only where that was accepted. Requires draft(drafted) > 0. O(size of both).
[[nodiscard]] Token verify_drafted(const Distribution& wanted, const Distribution& draft, Token drafted, Random& random);

}  // namespace uma::llm
