#include "kv/checksum.h"

#include <xxhash.h>

namespace uma::kv {

Checksum hash_of(std::span<const std::byte> bytes) {
  const XXH128_hash_t digest = XXH3_128bits(bytes.data(), bytes.size());
  return {digest.low64, digest.high64};
}

RunningHash::RunningHash() : state_(XXH3_createState(), [](XXH3_state_s* state) { XXH3_freeState(state); }) {
  XXH3_128bits_reset(state_.get());
}

void RunningHash::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

Checksum RunningHash::value() const {
  const XXH128_hash_t digest = XXH3_128bits_digest(state_.get());
  return {digest.low64, digest.high64};
}

}  // namespace uma::kv
