// The time of a denoising step as networks take it. Pure.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace uma::llm {

// Cosines, then sines of the time (from 0 to 1000) in frequencies that fall from 1 to 1/10,000; `count` numbers, an even one.
[[nodiscard]] inline std::vector<float> time_waves(double time, std::size_t count) {
  const std::size_t half = count / 2;
  std::vector<float> waves(2 * half);
  for (std::size_t i = 0; i < half; ++i) {
    const double angle = time * std::pow(10'000.0, -static_cast<double>(i) / static_cast<double>(half));
    waves[i] = static_cast<float>(std::cos(angle));
    waves[half + i] = static_cast<float>(std::sin(angle));
  }
  return waves;
}

}  // namespace uma::llm
