// Passes over the logits of one row: plain C++, shaped so that the compiler uses vector instructions. Pure.
// A logit's depth is how far it lies below the largest one, times a scale; its weight is e^-depth.
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace uma::llm {

// The logit of a token that cannot be drawn.
inline constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

inline constexpr std::size_t kDepthBinsPerUnit = 32;
inline constexpr std::size_t kDepthBins = 48 * kDepthBinsPerUnit + 1;

// Sums of weights by depth: bin i is of the depths nearest to i / kDepthBinsPerUnit.
using DepthBins = std::array<double, kDepthBins>;

// Writes the largest logit of each block of `block_size`, a multiple of 8, the last one shorter. NaN counts as -infinity.
void block_maxima(std::span<const float> logits, std::size_t block_size, std::vector<float>& maxima);

// Whether a token can be chosen from them: one is finite, and none is NaN or +infinity. What a model computes from values that
// are not finite is not.
[[nodiscard]] bool are_sound(std::span<const float> logits);

// e^-depth to within 1e-13 of its value; 0 for NaN, and from 48 on, where no draw of 53 bits could tell it from the value.
// Requires depth >= 0 or NaN.
[[nodiscard]] double weight_at(double depth);

// The weights of all logits together. Requires a finite `best` >= all of them that are not NaN.
[[nodiscard]] double sum_of_weights(std::span<const float> logits, float best, double scale);
[[nodiscard]] DepthBins weights_by_depth(std::span<const float> logits, float best);

// How far two rows of logits are apart: the root mean square of their differences, in standard deviations of `expected`. 0 for
// equal rows, about 1.4 for unrelated ones; infinite where one of the two has a number that is not finite. REQUIRES: equally
// many, and some.
[[nodiscard]] double logits_distance(std::span<const float> logits, std::span<const float> expected);

}  // namespace uma::llm
