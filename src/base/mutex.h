// A mutex for clang's thread-safety analysis (run by script/lint): members are marked GUARDED_BY(mutex_), and an access without
// the lock is a compile error.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define UMA_TS(x) __attribute__((x))
#else
#define UMA_TS(x)
#endif
#define GUARDED_BY(x) UMA_TS(guarded_by(x))
#define REQUIRES_LOCK(...) UMA_TS(requires_capability(__VA_ARGS__))

namespace uma {

class UMA_TS(capability("mutex")) Mutex {
 public:
  void lock() UMA_TS(acquire_capability()) { mutex_.lock(); }
  void unlock() UMA_TS(release_capability()) { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class UMA_TS(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) UMA_TS(acquire_capability(mutex)) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() UMA_TS(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// A condition variable for Mutex. The caller holds the mutex around every wait and re-checks its condition afterwards.
class CondVar {
 public:
  void wait(Mutex& mutex) UMA_TS(no_thread_safety_analysis) { condition_.wait(mutex); }
  // Waits until notified or `deadline`, whichever comes first.
  template <class TimePointT>
  void wait_until(Mutex& mutex, TimePointT deadline) UMA_TS(no_thread_safety_analysis) {
    condition_.wait_until(mutex, deadline);
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable_any condition_;
};

}  // namespace uma
