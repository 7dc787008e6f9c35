#include "base/bytes.h"

#include <atomic>
#include <new>

#include "base/system/heap.h"

namespace uma {
namespace {

std::atomic<std::uint64_t> heap_bytes_held{0};

}  // namespace

void* allocate_bytes(std::size_t size) {
  const bool is_huge = size >= kHugeBlockFrom;
  void* place = is_huge ? ::operator new(size, std::align_val_t{kHugePage}) : ::operator new(size);
  heap_bytes_held.fetch_add(size, std::memory_order_relaxed);
  if (is_huge) advise_huge_pages(place, size);
  return place;
}

void free_bytes(void* place, std::size_t size) noexcept {
  heap_bytes_held.fetch_sub(size, std::memory_order_relaxed);
  if (size < kHugeBlockFrom) return ::operator delete(place);
  return_pages(place, size);
  ::operator delete(place, std::align_val_t{kHugePage});
}

std::uint64_t bytes_held() {
  return heap_bytes_held.load(std::memory_order_relaxed);
}

}  // namespace uma
