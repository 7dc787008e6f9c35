#include "engine/lane/run/sampling_team.h"

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/mutex.h"

namespace uma::engine {
namespace {

TEST(SamplingTeam, DoesEachPartOnce) {
  for (const std::int32_t threads : {0, 1, 5}) {
    SamplingTeam team(threads);
    EXPECT_EQ(threads > 0, team.has_threads());
    for (std::size_t count = 0; count < 200; ++count) {
      std::vector<std::atomic<int>> done(count);
      team.run(count, [&](std::size_t i) { ++done[i]; });
      for (const auto& times : done) ASSERT_EQ(1, times.load()) << threads << " threads, " << count << " parts";
    }
  }
}

TEST(SamplingTeam, ItsThreadsWorkBesideTheCaller) {
  SamplingTeam team(2);
  Mutex mutex;
  CondVar has_come;
  std::set<std::thread::id> threads;
  // Each part waits until all three are in work at once.
  team.run(3, [&](std::size_t) {
    const MutexLock lock(mutex);
    threads.insert(std::this_thread::get_id());
    has_come.notify_all();
    while (threads.size() < 3) has_come.wait(mutex);
  });
  EXPECT_EQ(3U, threads.size());
}

}  // namespace
}  // namespace uma::engine
