// The memory of ggml's buffers, which hold weights, keys and values. libggml-base takes it from posix_memalign(), which is
// defined here, in front of the C library's, because most systems give huge pages only to memory that asks for them
// (docs/decisions/0066). Any thread may call it, also before main(): it must not log, lock or throw. CMakeLists.txt links it
// into programs and exports it to ggml. Sanitizers have an allocator of their own.
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdlib>

#include "base/system/heap.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define UMA_HAS_SANITIZER
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UMA_HAS_SANITIZER
#endif

#ifndef UMA_HAS_SANITIZER

// Like the C library's function. The block is freed with free().
extern "C" int posix_memalign(void** place, std::size_t alignment, std::size_t bytes) noexcept {
  if (alignment % sizeof(void*) != 0 || !std::has_single_bit(alignment)) return EINVAL;
  const bool is_huge = bytes >= uma::kHugeBlockFrom;
  const int before = errno;  // posix_memalign() leaves it as it was.
  void* const block = std::aligned_alloc(is_huge ? std::max(alignment, uma::kHugePage) : alignment, bytes);
  if (block != nullptr && is_huge) uma::advise_huge_pages(block, bytes);
  errno = before;
  if (block == nullptr) return ENOMEM;
  *place = block;
  return 0;
}

#endif
