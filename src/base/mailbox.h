// A queue with many senders and one receiver, the only way in which threads pass work to each other. Senders never block. The
// admission of requests (core::Limits) bounds the queue; the mailbox itself accepts everything until it is closed.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"

namespace uma {

template <class T>
class Mailbox {
 public:
  // Any thread. Returns false if the mailbox is closed; the value is dropped then.
  bool push(T value) {
    {
      const MutexLock lock(mutex_);
      if (closed_) return false;
      values_.push_back(std::move(value));
    }
    ready_.notify_one();
    return true;
  }

  // Receiver only. Moves all values, in the order they were pushed, to the end of `out`; never blocks.
  void drain(std::vector<T>& out) {
    const MutexLock lock(mutex_);
    take(out);
  }

  // Receiver only. Like drain(), but waits for a value until `deadline` (kNever: for ever). Returns false once closed and
  // empty.
  bool wait_drain(std::vector<T>& out, TimePoint deadline) {
    const MutexLock lock(mutex_);
    while (values_.empty() && !closed_) {
      if (deadline == kNever) {
        ready_.wait(mutex_);
      } else {
        ready_.wait_until(mutex_, deadline);
        if (values_.empty() && std::chrono::steady_clock::now() >= deadline) break;
      }
    }
    take(out);
    return !(closed_ && out.empty());
  }

  // Any thread. Later pushes are refused; remaining values can still be drained.
  void close() {
    {
      const MutexLock lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
  }

 private:
  void take(std::vector<T>& out) REQUIRES_LOCK(mutex_) {
    for (T& value : values_) out.push_back(std::move(value));
    values_.clear();
  }

  Mutex mutex_;
  CondVar ready_;
  std::vector<T> values_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace uma
