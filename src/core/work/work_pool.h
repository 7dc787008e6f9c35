// Runs the jobs whose time grows with a request (reading a body, templates, tokenizing, grammars) outside of the threads that
// all requests share, so that a megabyte of text does not delay other requests.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <source_location>
#include <stop_token>
#include <type_traits>
#include <utility>

#include "base/clock.h"
#include "base/endable_work.h"
#include "base/move_only_function.h"
#include "base/mutex.h"
#include "core/error.h"
#include "core/ids.h"
#include "core/work/promise.h"
#include "core/work/task.h"

namespace uma {

// A pool of threads, which call step(): the engine owns them. The tenant whose jobs took the least CPU time lately goes first.
// At most one job with a short text, one with a long text and one that reads a file of a tenant run at a time, each kind in the
// order of arrival. Long ones leave a thread to the short ones, and files, which other processes decode, have threads beside
// them. Threads of a lower priority run huge texts and, while another tenant asks, those of a tenant that has used much more
// CPU time in the last second, and large ones, if such a thread is free. So one tenant's jobs delay only its own.
class WorkPool {
 public:
  using Job = MoveOnlyFunction<void()>;
  static constexpr std::size_t kLongBytes = 32'768;
  static constexpr std::size_t kLargeBytes = 256 << 10;  // A tenth of a second of tokenizing.
  static constexpr std::size_t kHugeBytes = 4 << 20;

  // Which threads call: those for texts, those for files, those of a lower priority, or threads for all jobs, as in tests.
  enum class Threads : std::uint8_t { texts, files, patient, all };

  // The CPU time that the calling thread has used.
  using CpuTime = Duration (*)();

  // So many jobs with files run at a time: each may take gigabytes for seconds.
  static constexpr int kFilesMax = 2;
  static constexpr int kPatientMax = 2;

  // `threads`, at least 2, for texts, kFilesMax for files and kPatientMax of a lower priority call step(). `cpu_time` is null
  // if all jobs count the same, as in the simulator.
  explicit WorkPool(int threads = 2, CpuTime cpu_time = nullptr) : threads_(threads), cpu_time_(cpu_time) {}

  // --- Any thread. `bytes` is the size of the text that the job reads. Dropped after close().
  void post(TenantId tenant, std::size_t bytes, Job job) { add(std::move(tenant), kind_of(bytes), bytes, std::move(job)); }
  // A job that reads pictures or clips, or has one decoded. Its time counts, not its thread's alone.
  void post_file(TenantId tenant, Job job) { add(std::move(tenant), kFile, 0, std::move(job)); }
  // For tasks: waits until `work`, which returns an Expected, has run as a job. The work owns its data: it may run longer than
  // the task, until it asks whether its request has ended (EndableWork); it does not begin once `end` was requested.
  template <class Work, class Result = std::invoke_result_t<Work&>>
  [[nodiscard]] auto run(TaskRunner& tasks, TenantId tenant, std::size_t bytes, Work work, std::stop_token end = {},
                         const std::source_location& place = std::source_location::current()) {
    auto unless_ended = [work = std::move(work), end = std::move(end)]() mutable -> Result {
      if (end.stop_requested()) return std::unexpected(Error{ErrorCode::limit_wait, "the request has ended"});
      const EndableWork endable(end);
      return work();
    };
    return run_as(tasks, std::move(tenant), kind_of(bytes), bytes, std::move(unless_ended), place);
  }
  // For tasks: the work reads pictures or clips, as a job of post_file().
  template <class Work, class Result = std::invoke_result_t<Work&>>
  [[nodiscard]] auto run_file(TaskRunner& tasks, TenantId tenant, Work work,
                              const std::source_location& place = std::source_location::current()) {
    return run_as(tasks, std::move(tenant), kFile, 0, std::move(work), place);
  }
  void close();

  // --- The pool's threads.
  // Runs the next job and logs what it throws. Returns false if none may run now.
  bool step(Threads threads = Threads::all);
  // Waits until a job may run. Returns false once the pool is closed and nothing waits.
  bool wait(Threads threads = Threads::all);

 private:
  enum Kind : std::uint8_t { kShort, kLong, kFile };
  static constexpr std::size_t kKinds = 3;
  static Kind kind_of(std::size_t bytes) { return bytes < kLongBytes ? kShort : kLong; }
  struct Waiting {
    std::uint64_t order = 0;  // Order of arrival.
    std::size_t bytes = 0;
    Job job;
  };
  // Exists while it has jobs or has used more than others, and for a while after its last job.
  struct Tenant {
    std::array<std::deque<Waiting>, kKinds> jobs{};  // Jobs of each kind.
    std::array<bool, kKinds> runs{};
    Duration used{};       // CPU time; not less than `least_used_` when its jobs began to wait.
    double recent_ms = 0;  // CPU time, as of `recent_at`; it decays.
    TimePoint recent_at{};
    TimePoint asked_at{};  // When its last job came.

    [[nodiscard]] bool waits() const {
      return std::ranges::any_of(jobs, [](const std::deque<Waiting>& each) { return !each.empty(); });
    }
    [[nodiscard]] double recent(TimePoint now) const;
    [[nodiscard]] bool is_idle() const { return !waits() && !std::ranges::contains(runs, true); }
  };
  struct Next {
    std::map<TenantId, Tenant>::iterator tenant;  // The map's end: no job may run.
    Kind kind = kShort;
    Threads threads = Threads::texts;  // Threads for which the job is.
  };
  template <class Work, class Result = std::invoke_result_t<Work&>>
  [[nodiscard]] auto run_as(TaskRunner& tasks, TenantId tenant, Kind kind, std::size_t bytes, Work work,
                            const std::source_location& place) {
    using Value = Result::value_type;
    auto begin = [this, tenant = std::move(tenant), kind, bytes, work = std::move(work), place](Promise<Value> reply) mutable {
      add(std::move(tenant), kind, bytes,
          [work = std::move(work), reply = std::move(reply), place]() mutable { reply(contain(work, place)); });
    };
    return tasks.ask<Value>(std::move(begin), place);
  }
  void add(TenantId tenant, Kind kind, std::size_t bytes, Job job);
  [[nodiscard]] Next next(Threads threads) REQUIRES_LOCK(mutex_);
  [[nodiscard]] Threads threads_for(const TenantId& id, const Tenant& tenant, Kind kind, TimePoint now) const
      REQUIRES_LOCK(mutex_);
  [[nodiscard]] bool uses_much(const TenantId& id, const Tenant& tenant, TimePoint now) const REQUIRES_LOCK(mutex_);
  // Whether another tenant for which `is_meant` holds has asked lately.
  template <class Predicate>
  [[nodiscard]] bool another_asks(const TenantId& id, TimePoint now, Predicate is_meant) const REQUIRES_LOCK(mutex_);
  [[nodiscard]] bool has_job(Threads threads) REQUIRES_LOCK(mutex_) { return next(threads).tenant != tenants_.end(); }
  void wake() REQUIRES_LOCK(mutex_);
  void wake(Threads threads) REQUIRES_LOCK(mutex_);
  void wake_all();
  [[nodiscard]] bool is_free(Threads threads, Kind kind) const REQUIRES_LOCK(mutex_);
  [[nodiscard]] TimePoint now() const { return cpu_time_ == nullptr ? TimePoint() : SteadyClock().now(); }
  [[nodiscard]] int& count(const Next& of) REQUIRES_LOCK(mutex_) {
    return of.threads == Threads::patient ? patient_ : running_[of.kind];
  }
  void end(const Next& ended, Duration used) REQUIRES_LOCK(mutex_);

  const int threads_;
  const CpuTime cpu_time_;
  Mutex mutex_;
  std::array<CondVar, 4> ready_;  // For each kind of threads: there is a job for them.
  std::map<TenantId, Tenant> tenants_ GUARDED_BY(mutex_);
  std::uint64_t posted_ GUARDED_BY(mutex_) = 0;
  std::array<int, kKinds> running_ GUARDED_BY(mutex_){};  // Without the patient ones.
  int patient_ GUARDED_BY(mutex_) = 0;
  Duration least_used_ GUARDED_BY(mutex_){};  // CPU time of the tenant that was chosen last: a new one begins with it.
  bool closed_ GUARDED_BY(mutex_) = false;
};

// The CPU time of the calling thread.
[[nodiscard]] Duration thread_cpu_time();

}  // namespace uma
