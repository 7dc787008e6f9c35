// An XXH3-128 value. It detects damage, but not deliberate changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

struct XXH3_state_s;

namespace uma::kv {

struct Checksum {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const Checksum&) const = default;
};

// O(bytes), about 10 GB/s.
[[nodiscard]] Checksum hash_of(std::span<const std::byte> bytes);

// The hash of bytes that come one after another; it equals hash_of() of them together.
class RunningHash {
 public:
  RunningHash();
  void add(std::span<const std::byte> bytes);
  [[nodiscard]] Checksum value() const;

 private:
  std::unique_ptr<XXH3_state_s, void (*)(XXH3_state_s*)> state_;
};

}  // namespace uma::kv
