#include "base/cpu_load.h"

#include <atomic>
#include <chrono>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

namespace uma {
namespace {

void work_for(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  std::atomic<int> turns{0};
  while (std::chrono::steady_clock::now() < end) turns.fetch_add(1);
}

TEST(CpuLoad, SaysNothingTheFirstTime) {
  CpuLoad load;
  EXPECT_FALSE(load.others_since_last());
}

// Other programs run on this machine too, so only differences that they could hardly make are asserted.
TEST(CpuLoad, CountsAnotherProcessAndNotThisOne) {
  CpuLoad load;
  double own = 1e9;
  double others = 0;
  for (int attempt = 0; attempt < 5 && others < own + 0.3; ++attempt) {
    (void)load.others_since_last();
    work_for(std::chrono::milliseconds(300));
    own = load.others_since_last().value_or(1e9);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      work_for(std::chrono::milliseconds(300));
      ::_exit(0);
    }
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    others = load.others_since_last().value_or(0);
  }
  EXPECT_GT(others, own + 0.3);
}

}  // namespace
}  // namespace uma
