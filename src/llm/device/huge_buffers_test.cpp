// posix_memalign() as this program and ggml see it (huge_buffers_linux.cpp).
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include <ggml-backend.h>
#include <gtest/gtest.h>

#include "base/system/heap.h"
#include "base/system/sanitizer.h"
#include "llm/llama_model.h"

namespace uma::llm {
namespace {

std::unique_ptr<void, decltype(&std::free)> block(std::size_t alignment, std::size_t bytes) {
  void* place = nullptr;
  EXPECT_EQ(::posix_memalign(&place, alignment, bytes), 0);
  return {place, &std::free};
}

// Whether the mapping with `place` has asked for huge pages.
bool asks_for_huge_pages(const void* place) {
  const auto at = reinterpret_cast<std::uintptr_t>(place);
  std::ifstream maps("/proc/self/smaps");
  bool is_inside = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    if (words >> std::hex >> begin >> dash >> end && dash == '-') is_inside = begin <= at && at < end;
    if (is_inside && line.starts_with("VmFlags:")) return line.contains(" hg");
  }
  return false;
}

class HugeBuffers : public ::testing::Test {
 protected:
  void SetUp() override {
#if UMA_HAS_SANITIZER
    GTEST_SKIP() << "the sanitizers have an allocator of their own";
#endif
  }
};

TEST_F(HugeBuffers, LargeBlocksAskForHugePages) {
  if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage")) GTEST_SKIP() << "this kernel has no huge pages";
  const auto large = block(64, kHugeBlockFrom);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large.get()) % kHugePage, 0u);
  EXPECT_TRUE(asks_for_huge_pages(large.get()));
}

TEST_F(HugeBuffers, SmallerOnesDoNot) {
  // In a process of its own, whose heap has no parts that larger blocks have left.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto check_block = [] {
    const auto small = block(64, 4096);
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(small.get()) % 64 == 0;
    std::_Exit(is_aligned && !asks_for_huge_pages(small.get()) ? 0 : 1);
  };
  EXPECT_EXIT(check_block(), ::testing::ExitedWithCode(0), "");
}

TEST_F(HugeBuffers, WrongAlignmentsAndImpossibleSizesAreRefused) {
  void* place = nullptr;
  EXPECT_EQ(::posix_memalign(&place, 24, 100), EINVAL);
  EXPECT_EQ(::posix_memalign(&place, 4, 100), EINVAL);
  EXPECT_EQ(::posix_memalign(&place, 64, SIZE_MAX / 2), ENOMEM);
  EXPECT_EQ(place, nullptr);
}

TEST_F(HugeBuffers, TheErrorNumberStaysAsItWas) {
  errno = EDOM;
  const auto large = block(64, kHugeBlockFrom);
  void* place = nullptr;
  EXPECT_EQ(::posix_memalign(&place, 64, SIZE_MAX / 2), ENOMEM);
  EXPECT_EQ(errno, EDOM);
}

TEST_F(HugeBuffers, TheLibrarysBuffersAskForHugePages) {
  if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage")) GTEST_SKIP() << "this kernel has no huge pages";
  init_llama();
  ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  ASSERT_NE(cpu, nullptr);
  const std::unique_ptr<ggml_backend_buffer, decltype(&ggml_backend_buffer_free)> buffer(
      ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(cpu), kHugeBlockFrom), ggml_backend_buffer_free);
  ASSERT_NE(buffer, nullptr);
  EXPECT_TRUE(asks_for_huge_pages(ggml_backend_buffer_get_base(buffer.get())));
}

}  // namespace
}  // namespace uma::llm
