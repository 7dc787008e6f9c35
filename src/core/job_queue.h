// Jobs for one thread: those of a tenant in the order they came, the tenants in turn. So whoever brings many has only its own
// wait; what a job of another's costs at most is the job's to bound.
#pragma once

#include <deque>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mailbox.h"
#include "base/thrown.h"
#include "core/ids.h"

namespace uma {

class JobQueue {
 public:
  using Job = std::move_only_function<void()>;

  // --- Any thread.
  // `tenant`: for whom it is. Dropped after close().
  void post(TenantId tenant, Job job) { inbox_.push({std::move(tenant), std::move(job)}); }
  void close() { inbox_.close(); }

  // --- Owner thread.
  // Runs the next job, without blocking; what it throws is noted. False: none waits.
  bool step() {
    inbox_.drain(taken_);
    for (Waiting& waiting : taken_) add(std::move(waiting.tenant), std::move(waiting.job));
    taken_.clear();
    if (turns_.empty()) return false;
    const auto found = jobs_.find(turns_.front());
    turns_.pop_front();
    Job job = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) {
      jobs_.erase(found);
    } else {
      turns_.push_back(found->first);
    }
    run_noting(job);
    return true;
  }
  // Waits for a job; false once closed and empty.
  bool wait() { return !turns_.empty() || inbox_.wait_drain(taken_, kNever); }
  // From a job, whose next part it is: also after close().
  void add(TenantId tenant, Job job) {
    std::deque<Job>& jobs = jobs_[tenant];
    if (jobs.empty()) turns_.push_back(std::move(tenant));
    jobs.push_back(std::move(job));
  }

 private:
  struct Waiting {
    TenantId tenant;
    Job job;
  };

  Mailbox<Waiting> inbox_;
  std::vector<Waiting> taken_;
  std::unordered_map<TenantId, std::deque<Job>> jobs_;  // none is empty
  std::deque<TenantId> turns_;                          // each of those once
};

}  // namespace uma
