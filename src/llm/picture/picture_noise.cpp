#include "llm/picture/picture_noise.h"

#include <cmath>

namespace uma::llm {

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  constexpr int kRounds = 10;
  const auto high = [](std::uint64_t product) { return static_cast<std::uint32_t>(product >> 32); };
  const auto low = [](std::uint64_t product) { return static_cast<std::uint32_t>(product); };
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t first = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t second = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {high(second) ^ counter[1] ^ key[0], low(second), high(first) ^ counter[3] ^ key[1], low(first)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

std::vector<float> normal_noise(std::uint64_t seed, std::size_t count, std::uint32_t call) {
  // 2^-32 and 2 pi in single precision, as the generator has them.
  constexpr double kScale = 2.3283064e-10;
  constexpr double kAngle = kScale * 6.2831855;
  const std::array<std::uint32_t, 2> key{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  std::vector<float> numbers;
  numbers.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto random = philox({call, 0, static_cast<std::uint32_t>(i), 0}, key);
    const double radius = random[0] * kScale + kScale / 2;
    const double angle = random[1] * kAngle + kAngle / 2;
    numbers.push_back(static_cast<float>(std::sqrt(-2 * std::log(radius)) * std::sin(angle)));
  }
  return numbers;
}

}  // namespace uma::llm
