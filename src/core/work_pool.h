// Runs the jobs whose time grows with a request (reading a body, templates, tokenizing, grammars) outside of the threads that
// all requests share, so that a megabyte of text does not delay other requests.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <source_location>
#include <type_traits>
#include <utility>

#include "base/clock.h"
#include "base/move_only_function.h"
#include "base/mutex.h"
#include "core/error.h"
#include "core/ids.h"
#include "core/reply.h"
#include "core/task.h"

namespace uma {

// A pool of threads, which call step(): the engine owns them. The tenant whose jobs took the least CPU time lately goes first.
// At most one job with a short text and one with a long text of a tenant run at a time, each kind in the order of arrival, and
// long ones leave one thread to the short ones. So one tenant's jobs delay only its own.
class WorkPool {
 public:
  using Job = MoveOnlyFunction<void()>;
  static constexpr std::size_t kLongBytes = 32'768;

  // The CPU time that the calling thread has used.
  using CpuTime = Duration (*)();

  // `threads`: how many call step(), at least 2. `cpu_time` is null if all jobs count the same, as in the simulator.
  explicit WorkPool(int threads = 2, CpuTime cpu_time = nullptr) : long_max_(threads - 1), cpu_time_(cpu_time) {}

  // --- Any thread. `bytes` is the size of the text that the job reads. Dropped after close().
  void post(TenantId tenant, std::size_t bytes, Job job);
  // For tasks: waits until `work`, which returns an Expected, has run as a job. The work owns its data: it runs to its end even
  // if the task has ended before.
  template <class Work, class Result = std::invoke_result_t<Work&>>
  [[nodiscard]] auto run(TaskRunner& tasks, TenantId tenant, std::size_t bytes, Work work,
                         const std::source_location& place = std::source_location::current()) {
    using Value = Result::value_type;
    auto begin = [this, tenant = std::move(tenant), bytes, work = std::move(work), place](Reply<Value> reply) mutable {
      post(std::move(tenant), bytes,
           [work = std::move(work), reply = std::move(reply), place]() mutable { reply(contain(work, place)); });
    };
    return tasks.ask<Value>(std::move(begin), place);
  }
  void close();

  // --- The pool's threads.
  // Runs the next job and logs what it throws. Returns false if none may run now.
  bool step();
  // Waits until a job may run. Returns false once the pool is closed and nothing waits.
  bool wait();

 private:
  enum Kind : std::uint8_t { kShort, kLong };
  struct Waiting {
    std::uint64_t order = 0;  // Of arrival.
    Job job;
  };
  // Exists while it has jobs, or has used more than others.
  struct Tenant {
    std::array<std::deque<Waiting>, 2> jobs{};  // Of each kind.
    std::array<bool, 2> runs{};
    Duration used{};  // CPU time; not less than `least_used_` when its jobs began to wait.

    [[nodiscard]] bool is_idle() const { return jobs[kShort].empty() && jobs[kLong].empty() && !runs[kShort] && !runs[kLong]; }
  };
  struct Next {
    std::map<TenantId, Tenant>::iterator tenant;  // The map's end: no job may run.
    Kind kind = kShort;
  };
  [[nodiscard]] Next next() REQUIRES_LOCK(mutex_);
  void end(const Next& ended, Duration used) REQUIRES_LOCK(mutex_);

  const int long_max_;
  const CpuTime cpu_time_;
  Mutex mutex_;
  CondVar ready_;
  std::map<TenantId, Tenant> tenants_ GUARDED_BY(mutex_);
  std::uint64_t posted_ GUARDED_BY(mutex_) = 0;
  int long_running_ GUARDED_BY(mutex_) = 0;
  Duration least_used_ GUARDED_BY(mutex_){};  // Of the tenant that was chosen last: a new one begins with it.
  bool closed_ GUARDED_BY(mutex_) = false;
};

// The CPU time of the calling thread.
[[nodiscard]] Duration thread_cpu_time();

}  // namespace uma
