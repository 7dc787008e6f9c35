// Layers whose weights are set by hand, for models whose text is known (scripted_weights.h, played_weights.h).
//
// The residual stream has the numbers 0, 1 and -1, and one number 256 at kPlaceLarge. Normalization divides by the root of the
// mean square, which the large number determines up to a thousandth, so the weights of the norms undo it. The only head is as
// wide as the stream. The neurons compute conjunctions: silu(40 * (a + b - 1.5)) is 20 if both flags are set, and else 0 up to
// 1e-7.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "make_model/gguf_writer.h"

namespace uma {

inline constexpr std::int64_t kHandWidth = 64;  // Width of the residual stream and of the only head.
inline constexpr std::int64_t kIdBits = 13;
inline constexpr std::int64_t kHandTokensMax = 1 << kIdBits;

inline constexpr std::int64_t kPlaceLarge = 0;
inline constexpr float kLarge = 256;
inline constexpr float kOne = 1 / kLarge;  // The weight that makes 1 of the large number.

// Pairs of the head that rotary positions turn. The rows of the last ones are for comparing contents.
inline constexpr std::int64_t kTurned = 28;
inline constexpr std::int64_t kContentRow = 2 * kTurned;

inline constexpr float kLogitOfIdBit = 24;
inline constexpr float kGate = 40;
inline constexpr float kGateOpen = kGate / 2;

// A bit of a token's code.
[[nodiscard]] float sign_of(std::int64_t id, std::int64_t bit);
// Attention divides scores by the root of the head's size. The factor for a query and a key whose product is to be `score`.
[[nodiscard]] double root_of_score(double score);
[[nodiscard]] float as_weight(double value);
[[nodiscard]] Matrix hand_norm(std::string name);
// The logits for codes at `next`. They are positive for the right token only, so that penalties for repetition, which make
// logits smaller, change nothing.
[[nodiscard]] Matrix hand_logits(std::int64_t tokens_count, std::int64_t next);

struct HandLayer {
  HandLayer(std::int64_t layer, std::int64_t feed_forward);

  void move_to(std::vector<Matrix>& list);
  // Adds `from` of the attended token to `to`.
  void take(std::int64_t from, std::int64_t to);
  // A neuron that is open if the sum of these flags, some of them negated, is above `threshold`, which is half a flag away from
  // possible sums. Returns its number.
  std::int64_t add_neuron(std::initializer_list<std::pair<std::int64_t, float>> flags, float threshold);
  // An open neuron adds `factor` times the token's code to the code at `next`.
  void add_next(std::int64_t next, std::int64_t neuron, std::int64_t token, float factor);

  std::string block;
  Matrix query, key, value, output, gate, up, down;
  std::int64_t rows_used = 0;  // Rows of `value`.
  std::int64_t neurons_used = 0;
};

// Places of layers that count a token's distance from the nearest origin.
struct CountPlaces {
  std::int64_t is_begin = 0;    // <s>
  std::int64_t is_counted = 0;  // The token knows its distance.
  std::int64_t count = 0;       // The bits of the distance.
  // Numbers that tokens take from their origin.
  std::vector<std::int64_t> carried{};
};

// Counts up to 2^(bit+1) - 1, behind the layers for the lower bits. Before it, a token knows its distance if that is less than
// 2^bit. A token that does not know it attends to the token 2^bit before it, and takes its flags and bits; this bit is set if
// that token knows its own distance. A token that knows it attends to <s> and takes nothing. Rotary positions make the score of
// one distance the highest (rotary_angles.h).
[[nodiscard]] HandLayer count_layer(std::int64_t layer, std::int64_t bit, const CountPlaces& places, std::int64_t feed_forward);

}  // namespace uma
