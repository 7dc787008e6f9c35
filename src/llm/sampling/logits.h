// Passes over the logits of one row, in plain C++ that the compiler can vectorise. Pure. The depth of a logit is its distance
// below the largest one, times a scale; its weight is e^-depth.
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace uma::llm {

// The logit of a token that must not be drawn.
inline constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

inline constexpr std::size_t kDepthBinsPerUnit = 32;
inline constexpr std::size_t kDepthBins = 48 * kDepthBinsPerUnit + 1;

// Sums of weights by depth: bin i has the depths nearest to i / kDepthBinsPerUnit.
using DepthBins = std::array<double, kDepthBins>;

// Writes the largest logit of each block of `block_size` logits; the last block may be shorter. NaN counts as -infinity.
// Requires: block_size is a multiple of 8.
void block_maxima(std::span<const float> logits, std::size_t block_size, std::vector<float>& maxima);

// Whether a token can be chosen from the logits: at least one is finite, and none is NaN or +infinity. A model with damaged
// weights or KV fails this check.
[[nodiscard]] bool are_sound(std::span<const float> logits);

// e^-depth to within 1e-13 of its value; 0 for NaN and from depth 48 on, where a draw of 53 bits cannot notice the difference.
// Requires: depth >= 0 or NaN.
[[nodiscard]] double weight_at(double depth);

// The sum of the weights of all logits. Requires: `best` is finite and not below any logit.
[[nodiscard]] double sum_of_weights(std::span<const float> logits, float best, double scale);
[[nodiscard]] DepthBins weights_by_depth(std::span<const float> logits, float best);

// The distance of two rows of logits: the root mean square of their differences, in standard deviations of `expected`. 0 for
// equal rows, about 1.4 for unrelated rows, infinite if one row has a number that is not finite. Requires: rows of equal
// length, not empty.
[[nodiscard]] double logits_distance(std::span<const float> logits, std::span<const float> expected);

}  // namespace uma::llm
