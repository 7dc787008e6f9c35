#include "base/system/memory_info.h"

#include <fstream>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

namespace uma {
namespace {

class MemoryInfoFiles : public ::testing::Test {
 protected:
  MemoryInfoFiles() : root_(std::filesystem::path(::testing::TempDir()) / ("uma-memory-" + std::to_string(::getpid()))) {}
  ~MemoryInfoFiles() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  [[nodiscard]] std::uint64_t available() const { return available_memory_bytes(root_); }

  const std::filesystem::path root_;
};

TEST_F(MemoryInfoFiles, TakesWhatTheKernelCallsAvailable) {
  EXPECT_EQ(available(), 0u);
  write("proc/meminfo", "MemTotal:  4000 kB\nMemFree:  100 kB\nMemAvailable:  3000 kB\n");
  EXPECT_EQ(available(), 3000u * 1024);
}

TEST_F(MemoryInfoFiles, AGroupOrOneAboveItMayAllowLess) {
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

TEST_F(MemoryInfoFiles, KnowsTheFirstVersionOfGroups) {
  write("proc/meminfo", "MemAvailable:  3000 kB\n");
  write("proc/self/cgroup", "7:cpu,cpuacct:/x\n4:memory:/y\n");
  write("sys/fs/cgroup/memory/y/memory.limit_in_bytes", "300000\n");
  write("sys/fs/cgroup/memory/y/memory.usage_in_bytes", "100000\n");
  EXPECT_EQ(available(), 200'000u);
}

TEST_F(MemoryInfoFiles, TheLeastLimitOfAllLevelsCounts) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/memory.max", "700000\n");
  write("sys/fs/cgroup/a/b/memory.current", "100000\n");
  write("sys/fs/cgroup/a/memory.max", "900000\n");
  write("sys/fs/cgroup/a/memory.high", "600000\n");
  write("sys/fs/cgroup/a/memory.current", "550000\n");
  const MemoryInfo info = read_memory_info(root_);
  EXPECT_EQ(info.group_limit, 600'000u);
  EXPECT_EQ(info.group_left, 50'000u);
}

TEST_F(MemoryInfoFiles, PagesOfFilesThatNobodyUsesAreNotHeld) {
  write("proc/self/cgroup", "0::/a\n");
  write("sys/fs/cgroup/a/memory.max", "700000\n");
  write("sys/fs/cgroup/a/memory.current", "650000\n");
  write("sys/fs/cgroup/a/memory.stat", "anon 100000\nfile 540000\ninactive_file 500000\nactive_file 40000\n");
  EXPECT_EQ(read_memory_info(root_).group_left, 550'000u);
  write("sys/fs/cgroup/a/memory.stat", "inactive_file 900000\n");  // The files are read one after the other.
  EXPECT_EQ(read_memory_info(root_).group_left, 700'000u);
}

TEST_F(MemoryInfoFiles, WithoutAGroupThereIsNoLimit) {
  write("proc/meminfo", "MemTotal:  4000 kB\nMemAvailable:  3000 kB\n");
  write("proc/self/cgroup", "no group at all\n0::/\n");
  const MemoryInfo info = read_memory_info(root_);
  EXPECT_EQ(info.total, 4000u * 1024);
  EXPECT_EQ(info.group_limit, MemoryInfo::kUnlimited);
  EXPECT_EQ(info.group_left, MemoryInfo::kUnlimited);
}

TEST_F(MemoryInfoFiles, ReadsPressureWhereItIsCounted) {
  EXPECT_EQ(read_memory_info(root_).pressure, std::nullopt);
  write("proc/pressure/memory", "some avg10=1.25 avg60=0.50 avg300=0.00 total=1234\nfull avg10=9.00\n");
  EXPECT_EQ(read_memory_info(root_).pressure, 1.25);
  write("proc/pressure/memory", "");
  EXPECT_EQ(read_memory_info(root_).pressure, std::nullopt);
}

TEST_F(MemoryInfoFiles, KnowsWhatTheProcessHolds) {
  write("proc/self/status", "Name:\tumad\nVmRSS:\t    5000 kB\nRssAnon:\t    3000 kB\nRssFile:\t 2000 kB\n");
  const MemoryInfo info = read_memory_info(root_);
  EXPECT_EQ(info.own_resident, 5000u * 1024);
  EXPECT_EQ(info.own_anonymous, 3000u * 1024);
}

TEST(ThisMachinesMemory, IsRead) {
  const MemoryInfo info = read_memory_info();
  EXPECT_GT(info.total, 0u);
  EXPECT_LE(info.available, info.total);
  EXPECT_GT(info.own_anonymous, 0u);
  EXPECT_GE(info.own_resident, info.own_anonymous);
}

}  // namespace
}  // namespace uma
