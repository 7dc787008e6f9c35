#include "core/work/work_pool.h"

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace uma {
namespace {

// A step within a job is that of another thread of the pool.
class WorkPoolTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kLong = WorkPool::kLongBytes;

  void post(const std::string& tenant, std::size_t bytes, const std::string& name) {
    pool_.post(TenantId{tenant}, bytes, [this, name] { ran_ += name; });
  }
  void post_busy(const std::string& tenant, Duration time) {
    pool_.post(TenantId{tenant}, 1, [time] {
      const Duration until = thread_cpu_time() + time;
      while (thread_cpu_time() < until) {
      }
    });
  }
  // The loop of a thread of the pool.
  void serve(WorkPool::Threads which) {
    do {
      while (pool_.step(which)) {
      }
    } while (pool_.wait(which));
  }
  // The names of the jobs that run beside it.
  void post_and_step(const std::string& tenant, std::size_t bytes) {
    pool_.post(TenantId{tenant}, bytes, [this] {
      while (pool_.step()) {
      }
      ran_ += '|';
    });
  }
  std::string run() {
    while (pool_.step()) {
    }
    return ran_;
  }

  WorkPool pool_{2, thread_cpu_time};
  std::string ran_;
};

TEST_F(WorkPoolTest, ATenantsJobsOfAKindRunOneAfterAnother) {
  post_and_step("a", 1);
  post("a", 1, "1");
  post("a", 1, "2");
  post("b", 1, "b");
  post("a", kLong, "L");
  EXPECT_EQ(run(), "bL|12");
}

TEST_F(WorkPoolTest, LongJobsLeaveAThreadToShortOnes) {
  post_and_step("a", kLong);
  post("b", kLong, "L");
  post("c", 1, "s");
  EXPECT_EQ(run(), "s|L");
}

TEST_F(WorkPoolTest, FilesTakeNoThreadThatTextsNeed) {
  const auto file = [this](const char* tenant, const char* name) {
    pool_.post_file(TenantId{tenant}, [this, name] { ran_ += name; });
  };
  const auto file_and_step = [this](const char* tenant) {
    pool_.post_file(TenantId{tenant}, [this] {
      while (pool_.step()) {
      }
      ran_ += '|';
    });
  };
  file_and_step("a");
  file_and_step("b");
  file("c", "f");
  post("a", 1, "s");
  post("a", kLong, "L");
  EXPECT_EQ(run(), "sL|f|") << "a third file waits for the end of one";
}

TEST_F(WorkPoolTest, PatientThreadsRunHugeTextsAndThoseOfWhoUsedMuchTime) {
  using Threads = WorkPool::Threads;
  post("a", 1, "s");
  post("b", WorkPool::kHugeBytes, "H");
  pool_.post_file(TenantId{"c"}, [this] { ran_ += "f"; });
  for (const Threads which : {Threads::texts, Threads::files, Threads::patient}) {
    while (pool_.step(which)) {
    }
  }
  EXPECT_EQ(ran_, "sfH");

  post_busy("a", std::chrono::milliseconds(500));
  EXPECT_TRUE(pool_.step(Threads::texts));
  post("a", 1, "a");
  post("b", 1, "b");
  EXPECT_TRUE(pool_.step(Threads::texts));
  EXPECT_EQ(ran_, "sfHb") << "a has used much time";
  EXPECT_TRUE(pool_.step(Threads::patient));
  EXPECT_EQ(ran_, "sfHba");
}

TEST_F(WorkPoolTest, LargeTextsArePatientWhileAnotherTenantAsks) {
  using Threads = WorkPool::Threads;
  post("a", WorkPool::kLargeBytes, "L");
  EXPECT_TRUE(pool_.step(Threads::texts)) << "a is alone";
  post("b", 1, "s");
  post("a", WorkPool::kLargeBytes, "L");
  EXPECT_TRUE(pool_.step(Threads::texts));
  EXPECT_FALSE(pool_.step(Threads::texts));
  EXPECT_TRUE(pool_.step(Threads::patient));
  EXPECT_EQ(ran_, "LsL");
}

TEST_F(WorkPoolTest, WhoIsAloneNeedsNoPatience) {
  post_busy("a", std::chrono::milliseconds(200));
  EXPECT_TRUE(pool_.step(WorkPool::Threads::texts));
  post("a", 1, "a");
  EXPECT_TRUE(pool_.step(WorkPool::Threads::texts));
  EXPECT_EQ(ran_, "a");
}

TEST_F(WorkPoolTest, WhatWasForAnotherThreadIsFoundWhenItsTimeIsForgotten) {
  post_busy("a", std::chrono::milliseconds(500));
  EXPECT_TRUE(pool_.step(WorkPool::Threads::texts));
  post("b", 1, "b");
  std::thread texts([this] { serve(WorkPool::Threads::texts); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // Until it waits.
  std::promise<void> ran;
  pool_.post(TenantId{"a"}, 1, [&] { ran.set_value(); });  // For a patient thread, of which there is none.
  EXPECT_EQ(ran.get_future().wait_for(std::chrono::minutes(1)), std::future_status::ready);
  pool_.close();
  texts.join();
}

TEST_F(WorkPoolTest, WhoUsedTheLeastTimeGoesFirst) {
  post_busy("a", std::chrono::milliseconds(10));
  post("a", 1, "a");
  post("b", 1, "b");
  post("b", 1, "b");
  EXPECT_EQ(run(), "bba");
}

TEST_F(WorkPoolTest, WhoComesBackHasNotLessTimeUsed) {
  post_busy("a", std::chrono::milliseconds(10));
  run();
  post("a", 1, "a");
  post("b", 1, "b");
  EXPECT_EQ(run(), "ba");
}

TEST_F(WorkPoolTest, ThreadsRunAllJobsAndEnd) {
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  for (const auto which : {WorkPool::Threads::texts, WorkPool::Threads::texts, WorkPool::Threads::patient}) {
    threads.emplace_back([this, which] { serve(which); });
  }
  for (int i = 0; i < 1000; ++i) {
    const std::size_t bytes = i % 3 == 0 ? 1 : i % 3 == 1 ? kLong : WorkPool::kHugeBytes;
    pool_.post(TenantId{std::to_string(i % 4)}, bytes, [&] { ++done; });
  }
  pool_.close();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, 1000);
}

TEST_F(WorkPoolTest, AJobThatThrowsEndsAlone) {
  pool_.post(TenantId{"a"}, 1, [] { throw std::runtime_error("a job's"); });
  post("a", 1, "a");
  EXPECT_EQ(run(), "a");
}

TEST_F(WorkPoolTest, QueuedJobsRunAfterItIsClosedAndLaterOnesDoNot) {
  post("a", 1, "a");
  pool_.close();
  post("a", 1, "late");
  EXPECT_TRUE(pool_.wait());
  EXPECT_EQ(run(), "a");
  EXPECT_FALSE(pool_.wait());
}

}  // namespace
}  // namespace uma
