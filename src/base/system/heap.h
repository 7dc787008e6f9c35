// Huge pages for large blocks, and the C library's allocator set to return freed memory, which has no effect on other
// allocators, such as those of sanitizers.
#pragma once

#include <cstddef>

namespace uma {

// Blocks of this size and more begin at a huge page and ask for huge pages: reading them takes fewer address translations, and
// touching them for the first time one page fault where it took 512.
inline constexpr std::size_t kHugeBlockFrom = std::size_t{4} << 20;
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Asks for huge pages. Without effect where the system has none to give. Requires: `place` is at the beginning of a page.
void advise_huge_pages(void* place, std::size_t bytes);

// Called before threads are started.
// - Blocks of 1 MiB and more return to the system when they are freed. By default glibc keeps freed blocks of up to 32 MiB in
//   one arena per thread, and raises that limit by itself (docs/decisions/0033).
// - Every thread has an arena of its own. By default threads share eight arenas a core, and a thread of low priority that holds
//   one while it has no core keeps the others waiting: streams for 40 ms.
void set_up_heap();

// Returns the pages of a block that is freed next, some at a time, as operator delete does here with large blocks: unmapping
// them all at once holds up every thread that maps or unmaps memory for as long as a busy machine keeps this one from running.
// A thread of low priority that freed 64 MiB kept all streams waiting for 40 ms. The content of the block is lost.
void return_pages(void* place, std::size_t bytes);

// Returns the free memory between smaller blocks to the system. Any thread; takes some milliseconds, in which other allocations
// may wait.
void give_back_free_memory();

}  // namespace uma
