#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
void GOMP_parallel(void (*region)(void*), void* data, unsigned size, unsigned flags);
void GOMP_barrier();
bool GOMP_single_start();
int omp_get_thread_num();
int omp_get_num_threads();
}

namespace uma::llm {
namespace {

// Works like a graph on a backend's threads: divides the work, waits at barriers, runs a step on a single thread.
struct Work {
  explicit Work(unsigned size) : parts(size), size_seen(size) {}
  std::vector<long> parts;
  std::vector<int> size_seen;
  std::atomic<int> singles{0};
  long sum = 0;
  int rounds = 0;

  static void run(void* data) {
    auto& work = *static_cast<Work*>(data);
    const auto self = static_cast<std::size_t>(omp_get_thread_num());
    work.size_seen[self] = omp_get_num_threads();
    for (int round = 0; round < work.rounds; ++round) {
      work.parts[self] = static_cast<long>(self) + round;
      GOMP_barrier();
      if (GOMP_single_start()) {
        ++work.singles;
        for (const long part : work.parts) work.sum += part;
      }
      GOMP_barrier();
    }
  }
};

long expected_sum(long size, long rounds) {
  return rounds * size * (size - 1) / 2 + size * rounds * (rounds - 1) / 2;
}

void compute(unsigned size, int rounds) {
  Work work(size);
  work.rounds = rounds;
  GOMP_parallel(Work::run, &work, size, 0);
  ASSERT_EQ(work.sum, expected_sum(size, rounds));
  ASSERT_EQ(work.singles, rounds);
  for (const int seen : work.size_seen) ASSERT_EQ(seen, static_cast<int>(size));
}

TEST(ComputeTeam, DividesWorkAndWaits) {
  for (const unsigned size : {2u, 3u, 2u, 5u, 4u, 2u}) compute(size, 50);
}

TEST(ComputeTeam, ARegionOfOneThreadIsTheCallersOwn) {
  Work work(1);
  work.rounds = 3;
  GOMP_parallel(Work::run, &work, 1, 0);
  EXPECT_EQ(work.sum, expected_sum(1, 3));
  EXPECT_EQ(omp_get_thread_num(), 0);
  EXPECT_EQ(omp_get_num_threads(), 1);
}

TEST(ComputeTeam, TeamsOfSeveralThreadsDoNotTouchEachOther) {
  std::vector<std::thread> callers;
  for (unsigned caller = 0; caller < 3; ++caller) {
    callers.emplace_back([caller] {
      for (int i = 0; i < 40; ++i) compute(2 + (caller + static_cast<unsigned>(i)) % 3, 10);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(ComputeTeam, SleepsWhenThereIsNothingToDo) {
  compute(4, 10);
  // A spinning thread never has the state "sleeping".
  const auto are_others_asleep = [] {
    const std::string self = std::to_string(::gettid());
    return std::ranges::all_of(std::filesystem::directory_iterator("/proc/self/task"), [&](const auto& task) {
      std::string stat;
      std::getline(std::ifstream(task.path() / "stat"), stat);  // "id (name) state ..."
      const std::size_t name_end = stat.rfind(')');
      return task.path().filename() == self || (name_end != std::string::npos && stat.substr(name_end, 3) == ") S");
    });
  };
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!are_others_asleep()) ASSERT_LT(std::chrono::steady_clock::now(), limit) << "a thread of the team goes on spinning";
  compute(4, 10);
}

}  // namespace
}  // namespace uma::llm
