// Log probabilities of the tokens of one row: the logarithms of the softmax over its logits. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "core/event.h"
#include "core/ids.h"
#include "llm/model.h"

namespace uma::llm {

// The log probabilities of `chosen` and of the `top` most likely tokens; equally likely tokens are sorted by their ids. NaN
// logits count as -infinity. O(V + top log V) for logits in random order. Requires: `chosen` is in the vocabulary.
[[nodiscard]] TokenLogprobs logprobs_of(std::span<const float> logits, Token chosen, std::int32_t top, const Vocab& vocab);

}  // namespace uma::llm
