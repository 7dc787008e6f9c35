// Settings for choosing the next token from the logits. The defaults give greedy decoding. An "off" value has no effect.
// Ranges are in sampling_fields.cpp.
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/ids.h"

namespace uma {

// The numbers that requests, cards and files of models may state (sampling_fields.h).
enum class SamplingField : std::uint8_t {
  temperature,
  top_p,
  top_k,
  min_p,
  typical_p,
  repeat_penalty,
  repeat_last_n,
  presence_penalty,
  frequency_penalty,
  dry_multiplier,
  dry_base,
  dry_allowed_length,
  dry_penalty_last_n,
  xtc_probability,
  xtc_threshold,
  mirostat,
  mirostat_tau,
  mirostat_eta,
};
inline constexpr std::size_t kSamplingFields = static_cast<std::size_t>(SamplingField::mirostat_eta) + 1;

inline constexpr std::size_t kDryBreakersMax = 32;      // Texts of dry_sequence_breakers.
inline constexpr std::size_t kDryBreakerBytesMax = 64;  // One of these texts.

struct SamplingParams {
  double temperature = 0;        // 0: always the most likely token.
  double top_p = 1;              // [0, 1]; 1: off; 0: only the most likely token
  int top_k = 0;                 // 0: off
  double min_p = 0;              // [0, 1); 0: off
  double typical_p = 1;          // (0, 1]; 1: off
  double repeat_penalty = 1;     // > 0; 1: off
  int repeat_last_n = 64;        // Last tokens that the three penalties count; 0: none; -1: all.
  double presence_penalty = 0;   // [-2, 2]; 0: off
  double frequency_penalty = 0;  // [-2, 2]; 0: off
  double dry_multiplier = 0;     // 0: off
  double dry_base = 1.75;        // >= 1
  int dry_allowed_length = 2;    // Tokens that may be repeated in a row without a penalty.
  int dry_penalty_last_n = -1;   // Last tokens that are searched; 0: none; -1: all.
  // Texts that end a repetition; nullopt: a line break, ":", "\"" and "*".
  std::optional<std::vector<std::string>> dry_sequence_breakers{};
  double xtc_probability = 0;                         // 0: off
  double xtc_threshold = 0.1;                         // Above 0.5: off
  int mirostat = 0;                                   // 0: off; the version, 1 or 2, which replaces all cuts.
  double mirostat_tau = 5;                            // The wanted surprise of a token, in bits.
  double mirostat_eta = 0.1;                          // The rate at which the cut follows the surprise.
  std::optional<std::uint64_t> seed{};                // Nullopt: drawn at random and returned in usage.
  std::vector<std::pair<Token, float>> logit_bias{};  // Added to the logit of each token; -inf forbids it.
  // Biases for every token of these texts, which the engine adds to logit_bias.
  std::vector<std::pair<std::string, float>> logit_bias_texts{};
  bool ignore_eos = false;  // End-of-generation tokens are never chosen.

  // Values that the request states; the model may have defaults for the others (ModelDefaults).
  std::bitset<kSamplingFields> given{};
};

}  // namespace uma
