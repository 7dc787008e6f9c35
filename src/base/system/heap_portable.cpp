// For systems without advice about huge pages, whose allocators return what is freed by themselves.
#include "base/system/heap.h"

#ifdef __APPLE__
#include <malloc/malloc.h>
#endif

namespace uma {

void advise_huge_pages(void* /*place*/, std::size_t /*bytes*/) {}

void set_up_heap() {}

void return_pages(void* /*place*/, std::size_t /*bytes*/) {}

void give_back_free_memory() {
#ifdef __APPLE__
  ::malloc_zone_pressure_relief(nullptr, 0);
#endif
}

}  // namespace uma
