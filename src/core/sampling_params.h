// Settings for choosing the next token from the logits. The defaults give greedy decoding. An "off" value has no effect.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/ids.h"

namespace uma {

struct SamplingParams {
  double temperature = 0;                           // 0: always the most likely token.
  double top_p = 1;                                 // (0, 1]; 1: off
  int top_k = 0;                                    // 0: off
  double min_p = 0;                                 // [0, 1); 0: off
  double repeat_penalty = 1;                        // > 0; 1: off
  double presence_penalty = 0;                      // [-2, 2]; 0: off
  double frequency_penalty = 0;                     // [-2, 2]; 0: off
  std::optional<std::uint64_t> seed;                // Nullopt: drawn at random and returned in usage.
  std::vector<std::pair<Token, float>> logit_bias;  // Added to the logit of each token; -inf forbids it.
  bool ignore_eos = false;                          // End-of-generation tokens are never chosen.

  // Values that the request states; the card of a model may set the others (ModelDefaults).
  struct Given {
    bool temperature = false;
    bool top_p = false;
    bool top_k = false;
    bool min_p = false;
    bool repeat_penalty = false;
    bool presence_penalty = false;
    bool frequency_penalty = false;
  } given{};
};

}  // namespace uma
