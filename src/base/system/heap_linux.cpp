#include "base/system/heap.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <malloc.h>
#include <new>
#include <sys/mman.h>
#include <unistd.h>

#include "base/system/sanitizer.h"

namespace uma {
namespace {

constexpr int kArenasMax = 1024;  // More than there are threads.
constexpr int kLargeFrom = 1 << 20;
// Free memory kept at an arena's end: enough to avoid repeated system calls in usual work.
constexpr int kKeptAtEnd = 4 << 20;

}  // namespace

void advise_huge_pages(void* place, std::size_t bytes) {
  ::madvise(place, bytes, MADV_HUGEPAGE);  // Only advice: a failure is harmless.
}

void set_up_heap() {
  ::mallopt(M_ARENA_MAX, kArenasMax);
  ::mallopt(M_MMAP_THRESHOLD, kLargeFrom);
  ::mallopt(M_TRIM_THRESHOLD, kKeptAtEnd);
}

void return_pages(void* place, std::size_t bytes) {
  const int before = errno;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(place);
  const std::uintptr_t end = (first + bytes) / page * page;
  for (std::uintptr_t begin = (first + page - 1) / page * page; begin < end;) {
    const std::uintptr_t next = std::min(end, (begin / kHugePage + 1) * kHugePage);  // A huge page is not divided.
    ::madvise(reinterpret_cast<void*>(begin), next - begin, MADV_DONTNEED);
    begin = next;
  }
  errno = before;
}

void give_back_free_memory() {
  ::malloc_trim(0);
}

}  // namespace uma

// The other forms of operator delete call this one, apart from those with an alignment. Sanitizers have their own.
#if defined(__GLIBC__) && !UMA_HAS_SANITIZER
// The library's operator new takes its memory from malloc(), too.
// NOLINTNEXTLINE(misc-new-delete-overloads)
void operator delete(void* place) noexcept {
  const std::size_t bytes = ::malloc_usable_size(place);
  if (bytes >= uma::kLargeFrom) uma::return_pages(place, bytes);
  std::free(place);
}
// NOLINTNEXTLINE(misc-new-delete-overloads)
void operator delete(void* place, std::size_t /*bytes*/) noexcept {
  ::operator delete(place);
}
#endif
