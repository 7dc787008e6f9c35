#include "base/system/heap.h"

#include <cstdint>
#include <cstring>
#include <memory>
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
    give_back_large_blocks();
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
