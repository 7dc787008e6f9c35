#include "umad/cpu_count.h"

#include <array>
#include <fstream>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

namespace uma::umad {
namespace {

class CpuCount : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "uma_cpu_count_test_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    sys_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(sys_); }

  void write(const std::string& name, std::string_view content) const {
    std::filesystem::create_directories((sys_ / name).parent_path());
    std::ofstream(sys_ / name) << content;
  }
  void write_siblings(int processor, std::string_view siblings) const {
    write("devices/system/cpu/cpu" + std::to_string(processor) + "/topology/thread_siblings_list", siblings);
  }

  std::filesystem::path sys_;
};

TEST_F(CpuCount, HardwareThreadsOfOneCoreCountOnce) {
  write_siblings(0, "0,2\n");
  write_siblings(1, "1,3\n");
  write_siblings(2, "0,2\n");
  write_siblings(3, "1,3\n");
  EXPECT_EQ(count_physical_cores(std::array{0, 1, 2, 3}, sys_), 2);
  EXPECT_EQ(count_physical_cores(std::array{0, 2}, sys_), 1);
  EXPECT_EQ(count_physical_cores(std::array{1, 2}, sys_), 2);
}

TEST_F(CpuCount, WithoutTopologyEveryProcessorIsACore) {
  EXPECT_EQ(count_physical_cores(std::array{4, 5, 6}, sys_), 3);
  EXPECT_EQ(count_physical_cores({}, sys_), 1);
}

TEST_F(CpuCount, AQuotaIsRoundedUp) {
  EXPECT_EQ(cpu_quota(sys_), 0);
  write("fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(cpu_quota(sys_), 0);
  write("fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(cpu_quota(sys_), 2);
  write("fs/cgroup/cpu.max", "nonsense");
  EXPECT_EQ(cpu_quota(sys_), 0);
}

TEST(CpuCountHere, IsAtLeastOne) {
  EXPECT_GE(usable_physical_cores(), 1);
}

}  // namespace
}  // namespace uma::umad
