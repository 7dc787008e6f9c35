// The noise that a picture begins with. The same seed gives the same numbers on every machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace uma::llm {

// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
[[nodiscard]] std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

// `count` normally distributed numbers: number i from counter (call, 0, i, 0) and the seed as the key, by Box and Muller in
// double precision. It is the order of PyTorch's generator for CUDA; `call` counts the draws from it.
[[nodiscard]] std::vector<float> normal_noise(std::uint64_t seed, std::size_t count, std::uint32_t call = 0);

}  // namespace uma::llm
