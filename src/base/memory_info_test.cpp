#include "base/memory_info.h"

#include <fstream>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

namespace uma {
namespace {

class MemoryInfo : public ::testing::Test {
 protected:
  MemoryInfo() : root_(std::filesystem::path(::testing::TempDir()) / ("uma-memory-" + std::to_string(::getpid()))) {}
  ~MemoryInfo() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  [[nodiscard]] std::uint64_t available() const { return available_memory_bytes(root_); }

  const std::filesystem::path root_;
};

TEST_F(MemoryInfo, TakesWhatTheKernelCallsAvailable) {
  EXPECT_EQ(available(), 0u);
  write("proc/meminfo", "MemTotal:  4000 kB\nMemFree:  100 kB\nMemAvailable:  3000 kB\n");
  EXPECT_EQ(available(), 3000u * 1024);
}

TEST_F(MemoryInfo, AGroupOrOneAboveItMayAllowLess) {
  write("proc/meminfo", "MemAvailable:  3000 kB\n");
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  write("sys/fs/cgroup/a/b/memory.current", "1000\n");
  EXPECT_EQ(available(), 3000u * 1024);
  write("sys/fs/cgroup/a/memory.max", "500000\n");
  write("sys/fs/cgroup/a/memory.current", "100000\n");
  EXPECT_EQ(available(), 400'000u);
  write("sys/fs/cgroup/a/b/memory.max", "900\n");
  EXPECT_EQ(available(), 0u);
}

TEST_F(MemoryInfo, KnowsTheFirstVersionOfGroups) {
  write("proc/meminfo", "MemAvailable:  3000 kB\n");
  write("proc/self/cgroup", "7:cpu,cpuacct:/x\n4:memory:/y\n");
  write("sys/fs/cgroup/memory/y/memory.limit_in_bytes", "300000\n");
  write("sys/fs/cgroup/memory/y/memory.usage_in_bytes", "100000\n");
  EXPECT_EQ(available(), 200'000u);
}

}  // namespace
}  // namespace uma
