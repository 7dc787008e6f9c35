#include "umad/machine.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

namespace uma::umad {
namespace {

class CpuName : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  std::string of(std::string_view text) const {
    std::ofstream(path_) << text;
    return cpu_name(path_);
  }
  std::filesystem::path path_ = std::filesystem::temp_directory_path() / ("uma_cpuinfo_test_" + std::to_string(::getpid()));
};

TEST_F(CpuName, IsTheKernelsName) {
  EXPECT_EQ(of("processor\t: 0\nmodel\t\t: 85\nmodel name\t: Some(R)  CPU @ 2.00GHz\n\nprocessor\t: 1\n"),
            "Some(R) CPU @ 2.00GHz");
}

TEST_F(CpuName, IsImplementerAndPartWhereTheKernelHasNoName) {
  EXPECT_EQ(of("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n\n"), "0x41 0xd0c");
}

TEST_F(CpuName, HasNothingThatAFileOfOursWouldHaveToEscape) {
  EXPECT_EQ(of("model name\t: a \"b\" \\c\x01 \xc3\xa9\n"), "a b c");
}

TEST_F(CpuName, IsUnknownWithoutTheFile) {
  EXPECT_EQ(cpu_name("/nonexistent"), "unknown");
  EXPECT_EQ(of(""), "unknown");
}

TEST(CpuSeconds, GrowWithWhatIsComputed) {
  const double machine = busy_cpu_s();
  const double process = process_cpu_s();
  EXPECT_GT(machine, 0);
  // The kernel counts in ticks of a hundredth of a second.
  volatile std::uint64_t sum = 0;
  while (process_cpu_s() < process + 0.05) sum = sum + 1;
  EXPECT_GT(busy_cpu_s(), machine);
}

}  // namespace
}  // namespace uma::umad
