// Rotary positions for weights that are set by hand: heads in which most pairs are turned by large angles, and the last few are
// not turned at all. With freq_base 1 the angles come from the tensor rope_freqs.weight alone.
#pragma once

#include <cstdint>
#include <vector>

#include "make_model/gguf_writer.h"

namespace uma {

// Returns the angle of each turned pair from one token to the next. The angles are not small, so that neighbours differ, and
// not in simple ratios, so that no other distance makes all pairs match.
[[nodiscard]] std::vector<double> angles_of_pairs(std::int64_t turned_pairs);

// Returns the tensor for heads of this size: the turned pairs, then pairs that stand.
[[nodiscard]] Matrix frequency_divisors(std::int64_t head, std::int64_t turned_pairs);

}  // namespace uma
