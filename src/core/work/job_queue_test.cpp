#include "core/work/job_queue.h"

#include <string>

#include <gtest/gtest.h>

namespace uma {
namespace {

class JobQueueTest : public ::testing::Test {
 protected:
  void post(const std::string& tenant, const std::string& name) {
    queue_.post(TenantId{tenant}, [this, name] { done_ += name; });
  }
  std::string run() {
    while (queue_.step()) {
    }
    return done_;
  }

  JobQueue queue_;
  std::string done_;
};

TEST_F(JobQueueTest, TenantsHaveTheirTurnsAndEachItsOrder) {
  for (const char* name : {"1", "2", "3", "4"}) post("many", name);
  post("one", "a");
  post("other", "x");
  post("one", "b");
  EXPECT_EQ(run(), "1ax2b34");
}

TEST_F(JobQueueTest, WhoComesLaterWaitsForNoMoreThanAJobOfEach) {
  for (const char* name : {"1", "2", "3"}) post("many", name);
  EXPECT_TRUE(queue_.step());
  post("late", "a");
  EXPECT_EQ(run(), "12a3");
}

TEST_F(JobQueueTest, AJobIsGoneWhenTheNextBegins) {
  auto held = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = held;
  queue_.post(TenantId{"a"}, [held = std::move(held)] {});
  queue_.post(TenantId{"b"}, [&] { EXPECT_TRUE(watched.expired()); });
  run();
}

TEST_F(JobQueueTest, QueuedJobsRunAfterItIsClosedAndLaterOnesDoNot) {
  post("one", "a");
  queue_.close();
  post("one", "lost");
  EXPECT_TRUE(queue_.wait());
  EXPECT_EQ(run(), "a");
  EXPECT_FALSE(queue_.wait());
}

}  // namespace
}  // namespace uma
