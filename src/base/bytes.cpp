#include "base/bytes.h"

#include <atomic>
#include <sys/mman.h>

namespace uma {
namespace {

constexpr std::size_t kHugeFrom = 4ul << 20;
constexpr std::align_val_t kHugePage{2ul << 20};

std::atomic<std::uint64_t> heap_bytes_held{0};

}  // namespace

void* allocate_bytes(std::size_t size) {
  heap_bytes_held.fetch_add(size, std::memory_order_relaxed);
  if (size < kHugeFrom) return ::operator new(size);
  void* place = ::operator new(size, kHugePage);
  ::madvise(place, size, MADV_HUGEPAGE);  // Only advice: a failure is harmless.
  return place;
}

void free_bytes(void* place, std::size_t size) noexcept {
  heap_bytes_held.fetch_sub(size, std::memory_order_relaxed);
  if (size < kHugeFrom) return ::operator delete(place);
  ::operator delete(place, kHugePage);
}

std::uint64_t bytes_held() {
  return heap_bytes_held.load(std::memory_order_relaxed);
}

}  // namespace uma
