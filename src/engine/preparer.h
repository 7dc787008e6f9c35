// Runs the jobs that read a client's text (tokenizing, templates, grammars) outside of the router's thread, so that a megabyte
// of text does not delay other requests.
#pragma once

#include <array>
#include <cstddef>
#include <source_location>
#include <span>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "core/ids.h"
#include "core/job_queue.h"
#include "core/reply.h"
#include "core/task.h"

namespace uma::engine {

// Long texts have a queue of their own, so that short texts do not wait for them. Each queue has its own thread.
class Preparer {
 public:
  static constexpr std::size_t kLongBytes = 32'768;

  // Any thread. `bytes` is the size of the text that the job reads.
  void post(TenantId tenant, std::size_t bytes, JobQueue::Job job) {
    queues_[bytes < kLongBytes ? 0 : 1].post(std::move(tenant), std::move(job));
  }
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
  void close() {
    for (JobQueue& queue : queues_) queue.close();
  }
  [[nodiscard]] std::span<JobQueue> queues() { return queues_; }
  // For tests without threads: runs one job of each queue. Returns true if there was a job.
  bool step() {
    bool any = false;
    for (JobQueue& queue : queues_) any |= queue.step();
    return any;
  }

 private:
  std::array<JobQueue, 2> queues_;
};

}  // namespace uma::engine
