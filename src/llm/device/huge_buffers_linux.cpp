// A posix_memalign() of our own, which replaces the C library's in the whole program. It is meant for ggml's buffers, which
// hold weights, keys and values: most systems give huge pages only to memory that asks for them (docs/decisions/0066). Any
// thread may call it, also before main(): it must not log or throw, and takes no lock of ours. CMakeLists.txt links it into
// programs and exports it to ggml. Elsewhere than on Linux, the C library's function stays.
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdlib>

#include "base/system/heap.h"
#include "base/system/sanitizer.h"

#if !UMA_HAS_SANITIZER

// Like the C library's function. The block is freed with free().
extern "C" int posix_memalign(void** place, std::size_t alignment, std::size_t bytes) noexcept {
  if (alignment % sizeof(void*) != 0 || !std::has_single_bit(alignment)) return EINVAL;
  const bool is_huge = bytes >= uma::kHugeBlockFrom;
  const int before = errno;  // The caller's errno stays as it was.
  void* const block = std::aligned_alloc(is_huge ? std::max(alignment, uma::kHugePage) : alignment, bytes);
  if (block != nullptr && is_huge) uma::advise_huge_pages(block, bytes);
  errno = before;
  if (block == nullptr) return ENOMEM;
  *place = block;
  return 0;
}

#endif
