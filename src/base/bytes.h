// Large opaque buffers that are overwritten right after their allocation, so growing them does not clear them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

namespace uma {

// Buffers of 4 MiB and more use huge pages if the system offers them: allocating 74 MB takes 12 ms instead of 30.
[[nodiscard]] void* allocate_bytes(std::size_t size);
void free_bytes(void* place, std::size_t size) noexcept;
// The bytes of all buffers of any size, which the limit of stored states counts. Any thread.
[[nodiscard]] std::uint64_t bytes_held();

template <class T>
struct UninitializedAllocator {
  using value_type = T;

  UninitializedAllocator() = default;
  template <class U>
  explicit(false) UninitializedAllocator(const UninitializedAllocator<U>& /*other*/) noexcept {}

  [[nodiscard]] T* allocate(std::size_t count) { return static_cast<T*>(allocate_bytes(count * sizeof(T))); }
  void deallocate(T* place, std::size_t count) noexcept { free_bytes(place, count * sizeof(T)); }
  template <class U, class... Arguments>
  void construct(U* place, Arguments&&... arguments) {
    if constexpr (sizeof...(Arguments) == 0) {
      ::new (static_cast<void*>(place)) U;
    } else {
      ::new (static_cast<void*>(place)) U(std::forward<Arguments>(arguments)...);
    }
  }
  bool operator==(const UninitializedAllocator&) const = default;
};

// resize() adds bytes of undefined value.
using Bytes = std::vector<std::byte, UninitializedAllocator<std::byte>>;

}  // namespace uma
