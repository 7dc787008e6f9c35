#include "base/system/heap.h"

#include <malloc.h>
#include <sys/mman.h>

namespace uma {
namespace {

constexpr int kLargeFrom = 1 << 20;
// Free memory kept at an arena's end: enough to avoid repeated system calls in usual work.
constexpr int kKeptAtEnd = 4 << 20;

}  // namespace

void advise_huge_pages(void* place, std::size_t bytes) {
  ::madvise(place, bytes, MADV_HUGEPAGE);  // Only advice: a failure is harmless.
}

void give_back_large_blocks() {
  ::mallopt(M_MMAP_THRESHOLD, kLargeFrom);
  ::mallopt(M_TRIM_THRESHOLD, kKeptAtEnd);
}

void give_back_free_memory() {
  ::malloc_trim(0);
}

}  // namespace uma
