#include "core/work_pool.h"

#include <algorithm>
#include <ctime>
#include <tuple>

#include "base/thrown.h"

namespace uma {

Duration thread_cpu_time() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

void WorkPool::add(TenantId tenant, Kind kind, Job job) {
  {
    const MutexLock lock(mutex_);
    if (closed_) return;
    Tenant& own = tenants_[std::move(tenant)];
    if (own.is_idle()) own.used = std::max(own.used, least_used_);
    own.jobs[kind].push_back({.order = posted_++, .job = std::move(job)});
  }
  ready_.notify_one();
}

void WorkPool::close() {
  {
    const MutexLock lock(mutex_);
    closed_ = true;
  }
  ready_.notify_all();
}

WorkPool::Next WorkPool::next() {
  Next best{.tenant = tenants_.end()};
  std::tuple<Duration, std::uint64_t> least;
  for (auto at = tenants_.begin(); at != tenants_.end(); ++at) {
    const Tenant& tenant = at->second;
    for (const Kind kind : {kShort, kLong, kFile}) {
      if (tenant.jobs[kind].empty() || tenant.runs[kind] || running_[kind] >= running_max_[kind]) continue;
      // The threads for texts are for both kinds of them.
      if (kind != kFile && running_[kShort] + running_[kLong] >= running_max_[kShort]) continue;
      const std::tuple own(tenant.used, tenant.jobs[kind].front().order);
      if (best.tenant != tenants_.end() && least <= own) continue;
      best = {.tenant = at, .kind = kind};
      least = own;
    }
  }
  return best;
}

bool WorkPool::step() {
  Next chosen;
  Job job;
  {
    const MutexLock lock(mutex_);
    chosen = next();
    if (chosen.tenant == tenants_.end()) return false;
    Tenant& tenant = chosen.tenant->second;
    job = std::move(tenant.jobs[chosen.kind].front().job);
    tenant.jobs[chosen.kind].pop_front();
    tenant.runs[chosen.kind] = true;
    least_used_ = std::max(least_used_, tenant.used);
    // A tenant that used more stays known, so that jobs that come one by one have no more time than jobs that wait.
    std::erase_if(tenants_,
                  [least = least_used_](const auto& each) { return each.second.is_idle() && each.second.used <= least; });
    ++running_[chosen.kind];
  }
  const auto time = [this, is_file = chosen.kind == kFile] {
    if (cpu_time_ == nullptr) return Duration();
    return is_file ? SteadyClock().now().time_since_epoch() : cpu_time_();
  };
  const Duration began = time();
  run_noting(job);
  job = nullptr;  // Its data is freed in the tenant's time, too.
  const Duration used = cpu_time_ != nullptr ? time() - began : from_ms(1);
  {
    const MutexLock lock(mutex_);
    end(chosen, used);
  }
  ready_.notify_all();
  return true;
}

void WorkPool::end(const Next& ended, Duration used) {
  Tenant& tenant = ended.tenant->second;
  tenant.runs[ended.kind] = false;
  tenant.used += used;
  --running_[ended.kind];
}

bool WorkPool::wait() {
  const MutexLock lock(mutex_);
  const auto waits = [](const auto& each) { return each.second.waits(); };
  while (next().tenant == tenants_.end()) {
    if (closed_ && std::ranges::none_of(tenants_, waits)) return false;
    ready_.wait(mutex_);
  }
  return true;
}

}  // namespace uma
