// An XXH3-128 value. It detects damage, but not deliberate changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace uma::kv {

struct Checksum {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const Checksum&) const = default;
};

// O(bytes), about 10 GB/s.
[[nodiscard]] Checksum hash_of(std::span<const std::byte> bytes);

}  // namespace uma::kv
