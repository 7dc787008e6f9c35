// How the next token is chosen from the logits. Defaults are the Unix socket's: greedy. "Off" values are those that change
// nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/ids.h"

namespace uma {

struct SamplingParams {
  double temperature = 0;                           // 0: always the most likely token
  double top_p = 1;                                 // (0, 1]; 1: off
  int top_k = 0;                                    // 0: off
  double min_p = 0;                                 // [0, 1); 0: off
  double repeat_penalty = 1;                        // > 0; 1: off
  double presence_penalty = 0;                      // [-2, 2]; 0: off
  double frequency_penalty = 0;                     // [-2, 2]; 0: off
  std::optional<std::uint64_t> seed;                // absent: drawn at random and returned in usage
  std::vector<std::pair<Token, float>> logit_bias;  // added to the logit of each token; -inf forbids it
  bool ignore_eos = false;                          // end-of-generation tokens are never chosen
};

}  // namespace uma
