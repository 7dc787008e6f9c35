#include "kv/byte_pool.h"

#include <utility>

#include <gtest/gtest.h>

namespace uma::kv {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(BytePool, GivesBackMemoryThatWasUsedBefore) {
  BytePool pool(64 * kMiB);
  Bytes first = pool.take(11 * kMiB);
  EXPECT_TRUE(first.empty());
  EXPECT_GE(first.capacity(), 11 * kMiB);
  EXPECT_LE(first.capacity(), 13 * kMiB);
  const std::byte* place = first.data();
  EXPECT_FALSE(pool.has(11 * kMiB));
  pool.give(std::move(first));
  EXPECT_TRUE(pool.has(12 * kMiB)) << "a little longer";
  EXPECT_FALSE(pool.has(40 * kMiB));
  EXPECT_FALSE(pool.has(2 * kMiB)) << "it would be wasted";
  EXPECT_EQ(pool.take(12 * kMiB).data(), place);
}

TEST(BytePool, KeepsNoMoreThanItMay) {
  BytePool pool(20 * kMiB);
  Bytes a = pool.take(12 * kMiB);
  Bytes b = pool.take(6 * kMiB);
  Bytes c = pool.take(4 * kMiB);
  pool.give(std::move(a));
  pool.give(std::move(b));
  pool.give(std::move(c));
  EXPECT_FALSE(pool.has(12 * kMiB));
  EXPECT_TRUE(pool.has(6 * kMiB));
  EXPECT_TRUE(pool.has(4 * kMiB));
}

TEST(BytePool, TakesNothingThatIsNotItsOwn) {
  BytePool pool(20 * kMiB);
  Bytes other;
  other.reserve(5 * kMiB + 1);
  pool.give(std::move(other));
  EXPECT_FALSE(pool.has(5 * kMiB));
}

}  // namespace
}  // namespace uma::kv
