// A random number generator as a value: SplitMix64 (Steele, Lea, Flood 2014), 8 bytes of state, the same numbers from the same
// seed everywhere. Its numbers reveal its state, so it is not for secrets. Not thread-safe: one owner each.
#pragma once

#include <cstdint>
#include <span>

namespace uma {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next_u64() {
    state_ += kStep;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }

  // Leaves out the next `count` numbers, in one step: the state is a counter. So threads can draw parts of one sequence.
  void skip(std::uint64_t count) { state_ += count * kStep; }

  // Uniform in [0, 1), 53 bits.
  double next_unit() { return static_cast<double>(next_u64() >> 11) * 0x1.0p-53; }

  // Uniform in [0, bound). Requires bound > 0. The bias of the multiplication is below 2^-32 for bounds up to 2^32.
  std::uint64_t next_below(std::uint64_t bound) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((Wide{next_u64()} * bound) >> 64);
  }

 private:
  static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15ull;
  std::uint64_t state_;
};

// Random bytes of the operating system, for keys: at most 256. False: the system has none. Thread-safe.
[[nodiscard]] bool fill_secure(std::span<unsigned char> bytes);

// A random number of the operating system, for seeds and for unpredictable names. Thread-safe.
[[nodiscard]] std::uint64_t secure_u64();

}  // namespace uma
