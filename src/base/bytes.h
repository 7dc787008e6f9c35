// Large opaque bytes that are written by somebody else right after they were allocated: growing them does not clear them first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

namespace uma {

// Memory of 4 MiB and more lies in huge pages where the system has them for who asks: getting 74 MB of them takes 12 ms, in
// small pages 30.
[[nodiscard]] void* allocate_bytes(std::size_t size);
void free_bytes(void* place, std::size_t size) noexcept;
// That all such memory takes now. Any thread.
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

// What resize() adds has no defined value.
using Bytes = std::vector<std::byte, UninitializedAllocator<std::byte>>;

}  // namespace uma
