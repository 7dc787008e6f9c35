#include "base/bytes.h"

#include <gtest/gtest.h>

namespace uma {
namespace {

TEST(BytesHeld, AreThoseOfAllThatLive) {
  const std::uint64_t before = bytes_held();
  {
    const Bytes small(1000);
    Bytes large;
    large.reserve(std::size_t{8} << 20);
    EXPECT_EQ(bytes_held(), before + 1000 + (std::uint64_t{8} << 20));
    const Bytes moved = std::move(large);
    EXPECT_EQ(bytes_held(), before + 1000 + (std::uint64_t{8} << 20));
  }
  EXPECT_EQ(bytes_held(), before);
}

}  // namespace
}  // namespace uma
