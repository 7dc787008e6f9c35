// Weights that compute a linear-feedback shift register over words: the next word follows from earlier ones by exclusive or,
// and its logit is 16 above every other. So rounding, the company in a batch and the kind of CPU change nothing in greedy text,
// a test can compute the text it expects (tests/e2e/shift_register.py), and cells of another text are noticed at once.
//
// A token has a code of 10 bits. Layer l knows a state s[l] of each token, s[0] being its code, and computes with distance d[l]
//     s[l+1](t) = rotate(s[l](t)) xor s[l](t - d[l])        the token at 0, <s>, stands for what would be before it
// where rotate moves bit j+1 to j, and the highest of all takes bit 0. The next token is the word whose code is the state that
// the last layer leaves. Bits are the numbers 1 (set) and -1, so exclusive or is a product with the sign of -a*b, and two
// neurons multiply exactly, since silu(x) - silu(-x) = x.
//
// The residual stream: [1, is <s>, s[0], s[0](t - d[0]), s[1], s[1](t - d[1]), …], ten numbers a state.
// Attention: all keys point one way, queries too, turned by d[l]: rotary positions make the score of the token at that distance
// the highest by far. A few pairs are not turned: in them <s> has the second highest score, wherever it is.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "make_model/gguf_writer.h"
#include "make_model/vocabulary.h"

namespace uma {

inline constexpr std::int64_t kCodeBits = 10;
inline constexpr std::array<std::int64_t, 3> kTapDistances{2, 13, 67};  // by layer

// Places in the residual stream.
inline constexpr std::int64_t kPlaceOne = 0;
inline constexpr std::int64_t kPlaceBegin = 1;
inline constexpr std::int64_t kPlaceCode = 2;

// What a register of so many layers needs at least.
[[nodiscard]] std::int64_t register_width_min(std::int64_t layers);
[[nodiscard]] std::int64_t register_feed_forward_min();

// The tokens that are generated, by their codes: the first 1,024 that begin with a space and go on. Fewer: the vocabulary is
// too small.
[[nodiscard]] std::vector<std::int64_t> register_words(const Vocabulary& vocabulary);

// All matrices of a model of architecture llama with one head. Requires widths as above, layers <= kTapDistances.size(), all
// words.
[[nodiscard]] std::vector<Matrix> list_register_matrices(const Vocabulary& vocabulary, std::int64_t layers, std::int64_t width,
                                                         std::int64_t feed_forward);

}  // namespace uma
