// Lets the work of a thread end early once nobody waits for its result: functions that take long ask between their parts.
#pragma once

#include <stop_token>
#include <utility>

namespace uma {

// While it exists, the thread's work ends with this token.
class EndableWork {
 public:
  explicit EndableWork(std::stop_token end) : outer_(std::exchange(current(), std::move(end))) {}
  ~EndableWork() { current() = std::move(outer_); }
  EndableWork(const EndableWork&) = delete;
  EndableWork& operator=(const EndableWork&) = delete;

  // Whether nobody waits for what the calling thread does.
  [[nodiscard]] static bool has_ended() { return current().stop_requested(); }

 private:
  [[nodiscard]] static std::stop_token& current() {
    thread_local std::stop_token token;
    return token;
  }

  std::stop_token outer_;
};

}  // namespace uma
