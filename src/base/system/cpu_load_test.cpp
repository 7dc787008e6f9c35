#include "base/system/cpu_load.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <format>
#include <fstream>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace uma {
namespace {

namespace fs = std::filesystem;
using std::chrono::duration;
using std::chrono::steady_clock;

void work_for(std::chrono::milliseconds time) {
  const auto end = steady_clock::now() + time;
  std::atomic<int> turns{0};
  while (steady_clock::now() < end) turns.fetch_add(1);
}

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

double own_seconds() {
  rusage own{};
  EXPECT_EQ(::getrusage(RUSAGE_SELF, &own), 0);
  return seconds(own.ru_utime) + seconds(own.ru_stime);
}

// On a system whose times the test says: what else this machine does is not known.
class CpuLoadTest : public ::testing::Test {
 protected:
  CpuLoadTest() {
    std::string pattern = fs::temp_directory_path() / "uma_cpu_load_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~CpuLoadTest() override { fs::remove_all(folder_); }

  // Every core has been busy for so many ticks; the last one's number is no core's that this process may use.
  void say_busy(std::uint64_t ticks_a_core) const {
    std::ofstream file(path());
    file << "cpu  9999999 0 0 0 0 0 0 0 0 0\n";
    for (int core = 0; core < kCores; ++core) {
      // user nice system idle iowait irq softirq and what is left out
      file << std::format("cpu{} {} 0 0 777 888 0 0 99 0 0\n", core, ticks_a_core);
    }
    file << std::format("cpu{} {} 0 0 0 0 0 0 0 0 0\nintr 5\n", CPU_SETSIZE, 1000 * ticks_a_core);
  }
  std::string path() const { return folder_ + "/stat"; }

  // Of numbers that a process may be given; those it has are among them.
  static constexpr int kCores = 1024;
  std::string folder_;
};

TEST_F(CpuLoadTest, SaysNothingTheFirstTimeAndWhereTheSystemDoesNot) {
  say_busy(1);
  CpuLoad load(path());
  EXPECT_FALSE(load.others_since_last());
  EXPECT_TRUE(load.others_since_last());
  fs::remove(path());
  EXPECT_FALSE(load.others_since_last());
}

TEST(CpuLoad, ReadsWhatThisSystemSays) {
  CpuLoad load;
  EXPECT_FALSE(load.others_since_last());
  EXPECT_TRUE(load.others_since_last());
}

TEST_F(CpuLoadTest, CountsOtherProcessesAndNotThisOne) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ASSERT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
  const double cores = CPU_COUNT(&allowed);
  const double ticks_a_second = static_cast<double>(::sysconf(_SC_CLK_TCK));

  CpuLoad load(path());
  say_busy(0);
  const auto before_first = steady_clock::now();
  const double own_before_first = own_seconds();
  (void)load.others_since_last();
  const auto after_first = steady_clock::now();
  const double own_after_first = own_seconds();
  say_busy(1000);
  work_for(std::chrono::milliseconds(50));
  const auto before_second = steady_clock::now();
  const double own_before_second = own_seconds();
  const double others = load.others_since_last().value();
  const double longest = duration<double>(steady_clock::now() - before_first).count();
  const double shortest = duration<double>(before_second - after_first).count();

  const double all = cores * 1000 / ticks_a_second;
  EXPECT_GE(others, (all - (own_seconds() - own_before_first)) / longest);
  EXPECT_LE(others, (all - (own_before_second - own_after_first)) / shortest);

  // Now only this one has worked.
  work_for(std::chrono::milliseconds(50));
  EXPECT_EQ(load.others_since_last(), 0);
}

}  // namespace
}  // namespace uma
