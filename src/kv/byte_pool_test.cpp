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
  Bytes again = pool.take(12 * kMiB);
  EXPECT_EQ(again.data(), place);
  pool.give(std::move(again));
  EXPECT_TRUE(pool.has(8 * kMiB)) << "a third is wasted";
  EXPECT_EQ(pool.take(8 * kMiB).data(), place);
  EXPECT_EQ(pool.idle_bytes(), 0u);
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
  EXPECT_EQ(pool.idle_bytes(), 10 * kMiB);
}

TEST(BytePool, ReservesNoMoreThanItsLimit) {
  BytePool pool(0);
  EXPECT_TRUE(pool.reserve(std::uint64_t{1} << 50)) << "without one";
  pool.limit(100);
  auto first = pool.reserve(60);
  EXPECT_FALSE(pool.reserve(41));
  EXPECT_EQ(pool.bytes_reserved(), 60u);
  pool.correct(*first, 50);
  EXPECT_TRUE(pool.reserve(50));
  pool.correct(*first, 120);
  EXPECT_EQ(pool.bytes_reserved(), 120u) << "it is held already";
  ByteBudget::Share none;
  pool.correct(none, 30);
  EXPECT_EQ(pool.bytes_reserved(), 150u);
  none = {};
  first.reset();
  EXPECT_EQ(pool.bytes_reserved(), 0u);
}

TEST(BytePool, WhatItKeepsGoesBeforeMoreIsMadeThanMayBe) {
  BytePool pool(64 * kMiB);
  pool.give(pool.take(8 * kMiB));
  pool.give(pool.take(4 * kMiB));
  EXPECT_EQ(pool.idle_bytes(), 12 * kMiB);
  pool.limit(bytes_held() + 5 * kMiB);
  const Bytes small = pool.take(5 * kMiB);
  EXPECT_EQ(pool.idle_bytes(), 12 * kMiB);
  const Bytes more = pool.take(2 * kMiB);
  EXPECT_EQ(pool.idle_bytes(), 4 * kMiB);
  EXPECT_LE(bytes_held(), pool.bytes_max());
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
