// Weights that play replies: behind a cue in the prompt follows the reply of the cue's kind, token by token. All other logits
// are 40 below that of the right token.
//
// A cue is a token of its own, the nearest origin of the tokens behind it. The layers count the distance from it to 127 in
// binary (hand_layer.h), and tokens take from it the kind of the reply and its echo: the code of the token that the reply has
// in its open places, such as the number of the turn. The feed-forward block of the last layer has a neuron for each kind and
// distance, which adds the code of the next token, and thirteen for an open place, which add the echo. The tokens themselves do
// not matter, so a reply may have the same token often, as texts have.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "make_model/gguf_writer.h"
#include "make_model/hand_layer.h"

namespace uma {

inline constexpr std::int64_t kPlayedLayers = 7;
inline constexpr std::int64_t kPlayedDistanceMax = (1 << kPlayedLayers) - 1;
inline constexpr std::int64_t kPlayedKindsMax = 4;

struct PlayedTokens {
  struct Cue {
    std::int64_t token = 0;
    std::int64_t echo = 0;
    std::int64_t kind = 0;  // The number of the reply.
  };
  struct Reply {
    std::int64_t after = 0;                             // Tokens between the cue and the reply.
    std::vector<std::optional<std::int64_t>> tokens{};  // Nothing: an open place.
  };
  std::int64_t tokens_count = 0;
  std::int64_t begin = 0;  // <s>
  std::int64_t end = 0;    // The end of a reply.
  std::vector<Cue> cues{};
  std::vector<Reply> replies{};
};

// The numbers of neurons that the replies need.
[[nodiscard]] std::int64_t played_feed_forward(const PlayedTokens& played);

// Returns all matrices of a model of architecture llama with one head of kHandWidth. Requires at most kHandTokensMax tokens and
// kPlayedKindsMax replies, whose last tokens are at most kPlayedDistanceMax - 1 behind their cues.
[[nodiscard]] std::vector<Matrix> list_played_matrices(const PlayedTokens& played);

}  // namespace uma
