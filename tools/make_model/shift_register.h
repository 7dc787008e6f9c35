// Weights that compute a linear-feedback shift register over words: the next word follows from earlier ones by exclusive or,
// and its logit is 16 above every other. So greedy text does not depend on rounding, on other sequences in the batch or on the
// kind of CPU; a test can compute the text it expects (tests/e2e/shift_register.py); and cells of another text change it at
// once.
//
// A token has a code of 10 bits. Layer l has a state s[l] of each token, where s[0] is its code, and computes with distance
// d[l]
//     s[l+1](t) = rotate(s[l](t)) xor s[l](t - d[l])        for t - d[l] < 0, the token at 0, <s>, is used
// where rotate moves bit j+1 to j, and bit 0 to the highest place. The next token is the word whose code is the state after the
// last layer. Bits are the numbers 1 (set) and -1, so exclusive or is the product -a*b, and two neurons multiply exactly,
// because silu(x) - silu(-x) = x.
//
// The residual stream is [1, is <s>, s[0], s[0](t - d[0]), s[1], s[1](t - d[1]), …], with ten numbers for each state.
// In attention all keys have the same direction. All queries have it too, turned by d[l]: rotary positions make the score of
// the token at that distance the highest by far. A few pairs are not turned: in them <s> has the second highest score at any
// distance.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "make_model/gguf_writer.h"
#include "make_model/vocabulary.h"

namespace uma {

inline constexpr std::int64_t kCodeBits = 10;
inline constexpr std::array<std::int64_t, 3> kTapDistances{2, 13, 67};  // d[l] by layer.

// Places in the residual stream.
inline constexpr std::int64_t kPlaceOne = 0;
inline constexpr std::int64_t kPlaceBegin = 1;
inline constexpr std::int64_t kPlaceCode = 2;

// The smallest widths for a register with this number of layers.
[[nodiscard]] std::int64_t register_width_min(std::int64_t layers);
[[nodiscard]] std::int64_t register_feed_forward_min();

// Returns the tokens that can be generated, by their codes: the first 1,024 that begin with a space and have more characters.
// Returns fewer if the vocabulary is too small.
[[nodiscard]] std::vector<std::int64_t> register_words(const Vocabulary& vocabulary);

// Returns all matrices of a model of architecture llama with one head. Requires the widths above, layers <=
// kTapDistances.size(), and a vocabulary with all 1,024 words.
[[nodiscard]] std::vector<Matrix> list_register_matrices(const Vocabulary& vocabulary, std::int64_t layers, std::int64_t width,
                                                         std::int64_t feed_forward);

}  // namespace uma
