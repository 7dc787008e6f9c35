#include "base/system/heap.h"

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/system/memory_info.h"
#include "base/system/sanitizer.h"

namespace uma {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::uint64_t held() {
  return read_memory_info().own_anonymous;
}

std::unique_ptr<char[]> block(std::size_t bytes) {
  auto made = std::make_unique_for_overwrite<char[]>(bytes);
  std::memset(made.get(), 1, bytes);
  return made;
}

class Heap : public ::testing::Test {
 protected:
  void SetUp() override {
#if UMA_HAS_SANITIZER
    GTEST_SKIP() << "the sanitizers have an allocator of their own";
#endif
    set_up_heap();
  }
};

TEST_F(Heap, LargeBlocksGoBackWhenTheyAreFreedWhateverLiesBetweenThem) {
  std::thread([] {
    block(24 * kMiB).reset();  // The size up to which blocks would be kept from now on.
    const std::uint64_t before = held();
    std::vector<std::unique_ptr<char[]>> large;
    std::vector<std::unique_ptr<char[]>> small;
    for (int i = 0; i < 20; ++i) {
      large.push_back(block(8 * kMiB));
      small.push_back(block(1000));
    }
    EXPECT_GT(held(), before + 150 * kMiB);
    large.clear();
    EXPECT_LT(held(), before + 16 * kMiB);
  }).join();
}

#if defined(__GLIBC__)
TEST_F(Heap, EveryThreadHasAnArenaOfItsOwn) {
  const std::size_t threads_count = std::min(8 * std::size_t{std::thread::hardware_concurrency()} + 8, std::size_t{256});
  std::barrier all_have(static_cast<std::ptrdiff_t>(threads_count));
  std::mutex mutex;
  std::set<std::uintptr_t> arenas;
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < threads_count; ++i) {
    threads.emplace_back([&] {
      constexpr std::uintptr_t kArenaBytes = std::uintptr_t{64} << 20;  // glibc aligns an arena's memory to this.
      const auto small = std::make_unique_for_overwrite<char[]>(1000);
      all_have.arrive_and_wait();
      const std::scoped_lock lock(mutex);
      arenas.insert(reinterpret_cast<std::uintptr_t>(small.get()) / kArenaBytes);
    });
  }
  threads.clear();
  EXPECT_EQ(arenas.size(), threads_count);
}
#endif

TEST_F(Heap, ABlockCanBeUsedAfterItsPagesWereReturned) {
  const auto large = block(8 * kMiB + 1000);
  const std::uint64_t before = held();
  return_pages(large.get(), 8 * kMiB + 1000);
  EXPECT_LT(held(), before - 7 * kMiB);
  std::memset(large.get(), 2, 8 * kMiB + 1000);
  EXPECT_EQ(large[8 * kMiB], 2);
}

TEST_F(Heap, SmallOnesGoBackWhenThatIsAskedFor) {
  std::thread([] {
    const std::uint64_t before = held();
    std::vector<std::unique_ptr<char[]>> blocks(1000);
    for (auto& each : blocks) each = block(kMiB / 10);
    const auto last = block(1000);  // Behind them all.
    blocks.clear();
    give_back_free_memory();
    EXPECT_LT(held(), before + 16 * kMiB);
  }).join();
}

}  // namespace
}  // namespace uma
