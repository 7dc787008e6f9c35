#include "base/random.h"

#include <array>
#include <bit>
#include <sys/random.h>

#include "base/check.h"

namespace uma {

bool fill_secure(std::span<unsigned char> bytes) {
  return ::getentropy(bytes.data(), bytes.size()) == 0;
}

std::uint64_t secure_u64() {
  std::array<unsigned char, sizeof(std::uint64_t)> bytes{};
  UMA_CHECK(fill_secure(bytes));
  return std::bit_cast<std::uint64_t>(bytes);
}

}  // namespace uma
