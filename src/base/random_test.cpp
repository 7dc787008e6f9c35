#include "base/random.h"

#include <gtest/gtest.h>

namespace uma {
namespace {

TEST(Random, SkipsToTheNumberThatWouldHaveCome) {
  for (const std::uint64_t count : {0ull, 1ull, 1000ull}) {
    Random drawn(7);
    for (std::uint64_t i = 0; i < count; ++i) static_cast<void>(drawn.next_u64());
    Random skipped(7);
    skipped.skip(count);
    EXPECT_EQ(skipped.next_u64(), drawn.next_u64()) << count;
  }
}

}  // namespace
}  // namespace uma
