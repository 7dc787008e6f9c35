// Lets one thread pause the long work of another: the worker passes the gate at short intervals, and waits there while the gate
// is closed.
#pragma once

#include <atomic>

#include "base/mutex.h"

namespace uma {

class Gate {
 public:
  // --- The one who holds up.
  // Returns when the worker is outside or waits at the gate.
  void close() {
    const MutexLock lock(mutex_);
    closed_.store(true);
    while (inside_ && !waiting_) changed_.wait(mutex_);
  }
  void open() {
    {
      const MutexLock lock(mutex_);
      closed_.store(false);
    }
    changed_.notify_all();
  }

  // --- The worker.
  // Waits while the gate is closed, then is inside until leave().
  void enter() {
    const MutexLock lock(mutex_);
    while (closed_.load()) changed_.wait(mutex_);
    inside_ = true;
  }
  // From inside, possibly in another thread that works for the worker: waits while the gate is closed.
  [[nodiscard]] bool is_closed() const { return closed_.load(std::memory_order_relaxed); }
  void pass() {
    const MutexLock lock(mutex_);
    waiting_ = true;
    changed_.notify_all();
    while (closed_.load()) changed_.wait(mutex_);
    waiting_ = false;
  }
  void leave() {
    {
      const MutexLock lock(mutex_);
      inside_ = false;
    }
    changed_.notify_all();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::atomic<bool> closed_{false};  // Written with mutex_ held.
  bool inside_ GUARDED_BY(mutex_) = false;
  bool waiting_ GUARDED_BY(mutex_) = false;
};

}  // namespace uma
