// An XXH3-128 value. Detects damage; no protection against who damages on purpose.
#pragma once

#include <cstdint>

namespace uma::kv {

struct Checksum {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const Checksum&) const = default;
};

}  // namespace uma::kv
