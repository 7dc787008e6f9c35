// Large opaque bytes that are written by somebody else right after they were allocated: growing them does not clear them first.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace uma {

template <class T>
struct UninitializedAllocator : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = UninitializedAllocator<U>;
  };
  template <class U, class... Arguments>
  void construct(U* place, Arguments&&... arguments) {
    if constexpr (sizeof...(Arguments) == 0) {
      ::new (static_cast<void*>(place)) U;
    } else {
      ::new (static_cast<void*>(place)) U(std::forward<Arguments>(arguments)...);
    }
  }
};

// What resize() adds has no defined value.
using Bytes = std::vector<std::byte, UninitializedAllocator<std::byte>>;

}  // namespace uma
