// Configures the C library's allocator to return freed memory. Without effect for other allocators, as in sanitizer builds.
#pragma once

namespace uma {

// Makes blocks of 1 MiB and more return to the system when they are freed. By default glibc keeps freed blocks of up to 32 MiB
// in one arena per thread; with conversations' states, that grew to 80 % of the memory in use (docs/decisions/0033). Called
// before threads are started.
void give_back_large_blocks();

// Returns the free memory between smaller blocks to the system. Any thread; takes some milliseconds, in which other allocations
// may wait.
void give_back_free_memory();

}  // namespace uma
