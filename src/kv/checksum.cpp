#include "kv/checksum.h"

#include <xxhash.h>

namespace uma::kv {

Checksum hash_of(std::span<const std::byte> bytes) {
  const XXH128_hash_t digest = XXH3_128bits(bytes.data(), bytes.size());
  return {digest.low64, digest.high64};
}

}  // namespace uma::kv
