// A thread whose end is waited for with a limit: it may be in a call that does not return, as of a network file system that
// hangs. Not thread-safe.
#pragma once

#include <future>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/move_only_function.h"

namespace uma::engine {

class LimitedJoin {
 public:
  LimitedJoin() = default;
  LimitedJoin(const LimitedJoin&) = delete;
  // Waits for the thread, however long it takes.
  ~LimitedJoin() {
    if (thread_.joinable()) thread_.join();
  }

  void start(MoveOnlyFunction<void()> work) {
    std::promise<void> ended;
    ended_ = ended.get_future();
    thread_ = std::thread([work = std::move(work), ended = std::move(ended)]() mutable {
      work();
      ended.set_value();
    });
  }
  // Returns false if the thread runs on.
  [[nodiscard]] bool join_for(Duration limit) {
    if (!thread_.joinable()) return true;
    if (ended_.wait_for(limit) != std::future_status::ready) return false;
    thread_.join();
    return true;
  }

 private:
  std::thread thread_;
  std::future<void> ended_;
};

}  // namespace uma::engine
