// Jobs for one thread. Tenants take turns, so a tenant with many jobs delays only its own. A job must bound its cost, since it
// delays the other tenants. The jobs of one tenant run in the order of their arrival.
#pragma once

#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mailbox.h"
#include "base/move_only_function.h"
#include "base/thrown.h"
#include "core/ids.h"

namespace uma {

class JobQueue {
 public:
  using Job = MoveOnlyFunction<void()>;

  // --- Any thread.
  // A job of `tenant`; dropped after close().
  void post(TenantId tenant, Job job) { inbox_.push({std::move(tenant), std::move(job)}); }
  void close() { inbox_.close(); }

  // --- Owner thread.
  // Runs the next job, without blocking, and logs what it throws. Returns false if no job waits.
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
  // Waits for a job. Returns false once the queue is closed and empty.
  bool wait() { return !turns_.empty() || inbox_.wait_drain(taken_, kNever); }

 private:
  struct Waiting {
    TenantId tenant;
    Job job;
  };

  void add(TenantId tenant, Job job) {
    std::deque<Job>& jobs = jobs_[tenant];
    if (jobs.empty()) turns_.push_back(std::move(tenant));
    jobs.push_back(std::move(job));
  }

  Mailbox<Waiting> inbox_;
  std::vector<Waiting> taken_;
  std::unordered_map<TenantId, std::deque<Job>> jobs_;  // None is empty.
  std::deque<TenantId> turns_;                          // Each of those once.
};

}  // namespace uma
