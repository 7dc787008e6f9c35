// Threads that choose the tokens of a call together with the lane's thread, where a device computes and the CPU's cores are
// idle (docs/decisions/0088). They sleep between calls.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace uma::engine {

class SamplingTeam {
 public:
  // `threads` >= 0 work beside the caller of run().
  explicit SamplingTeam(std::int32_t threads);
  ~SamplingTeam();
  SamplingTeam(const SamplingTeam&) = delete;
  SamplingTeam& operator=(const SamplingTeam&) = delete;

  // Calls `work` once with each number below `count`, in any order and on any of the threads. Returns when all calls have
  // returned. `work` throws nothing.
  void run(std::size_t count, const std::function<void(std::size_t)>& work);
  [[nodiscard]] bool has_threads() const { return !threads_.empty(); }

 private:
  void serve();
  void take(const std::function<void(std::size_t)>& work, std::size_t count);

  std::atomic<std::size_t> next_{0};
  Mutex mutex_;
  CondVar has_begun_;
  CondVar has_ended_;
  const std::function<void(std::size_t)>* work_ GUARDED_BY(mutex_) = nullptr;
  std::size_t count_ GUARDED_BY(mutex_) = 0;
  std::uint64_t round_ GUARDED_BY(mutex_) = 0;
  std::size_t busy_ GUARDED_BY(mutex_) = 0;  // Threads that have not ended their part of the round.
  bool is_closed_ GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_;
};

}  // namespace uma::engine
