// How likely the tokens of one row were: the logarithms of the softmax over its logits. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "core/event.h"
#include "core/ids.h"
#include "llm/model.h"

namespace uma::llm {

// Of `chosen` and of the `top` likeliest, equally likely ones in order of their tokens. Logits that are no numbers count as
// -infinity. O(V + top log V) where the logits are in random order. Requires `chosen` of the vocabulary whose logits these are.
[[nodiscard]] TokenLogprobs logprobs_of(std::span<const float> logits, Token chosen, std::int32_t top, const Vocab& vocab);

}  // namespace uma::llm
