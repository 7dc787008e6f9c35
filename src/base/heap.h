// How the C library's allocator treats what is freed. Where it is another one, as in sanitizer builds, both do nothing.
#pragma once

namespace uma {

// From now on blocks of 1 MiB and more come from the system, and go back to it when they are freed. Left to itself, glibc keeps
// blocks of up to 32 MiB once the first of them was freed, in one arena for each thread that made some: with states of
// conversations that come and go that grew to 80 % of what was in use (docs/decisions/0033). Before threads are started.
void give_back_large_blocks();

// Gives back what is free between smaller blocks. Any thread; some milliseconds, in which others may wait to allocate.
void give_back_free_memory();

}  // namespace uma
