#include "core/work/work_pool.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <tuple>

#include "base/thrown.h"

namespace uma {
namespace {

constexpr double kRecentMs = 1000;                                // How fast a tenant's recent CPU time decays.
constexpr double kMuchMs = 100;                                   // More than that in about a second is much,
constexpr double kMuchMore = 2;                                   // if it is so many times what another tenant used.
constexpr Duration kAsksFor = std::chrono::seconds(2);            // So long after a job its tenant counts as one that asks.
constexpr Duration kLooksAgain = std::chrono::milliseconds(100);  // Interval of looking again, since used time decays.

}  // namespace

double WorkPool::Tenant::recent(TimePoint now) const {
  return recent_ms == 0 ? 0 : recent_ms * std::exp(-to_ms(now - recent_at) / kRecentMs);
}

Duration thread_cpu_time() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

void WorkPool::add(TenantId tenant, Kind kind, std::size_t bytes, Job job) {
  {
    const MutexLock lock(mutex_);
    if (closed_) return;
    Tenant& own = tenants_[std::move(tenant)];
    own.asked_at = now();
    if (own.is_idle()) own.used = std::max(own.used, least_used_);
    own.jobs[kind].push_back({.order = posted_++, .bytes = bytes, .job = std::move(job)});
    wake();
  }
}

// One thread of each kind that may run a job; it wakes the next one when it begins.
void WorkPool::wake() {
  if (closed_) return wake_all();
  for (const Threads threads : {Threads::texts, Threads::files, Threads::patient, Threads::all}) wake(threads);
  // A job that waits for a patient thread may be one for texts after a while, for which one of their threads watches.
  if (patient_ == kPatientMax || has_job(Threads::patient)) ready_[static_cast<std::size_t>(Threads::texts)].notify_one();
}

void WorkPool::wake(Threads threads) {
  if (has_job(threads)) ready_[static_cast<std::size_t>(threads)].notify_one();
}

void WorkPool::close() {
  {
    const MutexLock lock(mutex_);
    closed_ = true;
  }
  wake_all();
}

void WorkPool::wake_all() {
  for (CondVar& ready : ready_) ready.notify_all();
}

WorkPool::Threads WorkPool::threads_for(const TenantId& id, const Tenant& tenant, Kind kind, TimePoint now) const {
  if (kind == kFile) return Threads::files;
  const std::size_t bytes = tenant.jobs[kind].front().bytes;
  const auto anyone = [](const Tenant&) { return true; };
  const bool is_large = bytes >= kLargeBytes && patient_ < kPatientMax && another_asks(id, now, anyone);
  const bool is_patient = bytes >= kHugeBytes || is_large || uses_much(id, tenant, now);
  return is_patient ? Threads::patient : Threads::texts;
}

template <class Predicate>
bool WorkPool::another_asks(const TenantId& id, TimePoint now, Predicate is_meant) const {
  return std::ranges::any_of(tenants_, [&](const auto& other) {
    return other.first != id && now < other.second.asked_at + kAsksFor && is_meant(other.second);
  });
}

bool WorkPool::uses_much(const TenantId& id, const Tenant& tenant, TimePoint now) const {
  const double used = tenant.recent(now);
  return used > kMuchMs && another_asks(id, now, [&](const Tenant& other) { return other.recent(now) * kMuchMore < used; });
}

bool WorkPool::is_free(Threads threads, Kind kind) const {
  if (threads == Threads::patient) return patient_ < kPatientMax;
  if (threads == Threads::files) return running_[kFile] < kFilesMax;
  return running_[kShort] + running_[kLong] < threads_ && (kind == kShort || running_[kLong] < threads_ - 1);
}

WorkPool::Next WorkPool::next(Threads threads) {
  const TimePoint at_now = now();
  Next best{.tenant = tenants_.end()};
  std::tuple<Duration, std::uint64_t> least;
  for (auto at = tenants_.begin(); at != tenants_.end(); ++at) {
    const Tenant& tenant = at->second;
    for (const Kind kind : {kShort, kLong, kFile}) {
      if (tenant.jobs[kind].empty() || tenant.runs[kind]) continue;
      const Threads wanted = threads_for(at->first, tenant, kind, at_now);
      if ((threads != Threads::all && threads != wanted) || !is_free(wanted, kind)) continue;
      const std::tuple own(tenant.used, tenant.jobs[kind].front().order);
      if (best.tenant != tenants_.end() && least <= own) continue;
      best = {.tenant = at, .kind = kind, .threads = wanted};
      least = own;
    }
  }
  return best;
}

bool WorkPool::step(Threads threads) {
  Next chosen;
  Job job;
  {
    const MutexLock lock(mutex_);
    chosen = next(threads);
    if (chosen.tenant == tenants_.end()) return false;
    Tenant& tenant = chosen.tenant->second;
    job = std::move(tenant.jobs[chosen.kind].front().job);
    tenant.jobs[chosen.kind].pop_front();
    tenant.runs[chosen.kind] = true;
    least_used_ = std::max(least_used_, tenant.used);
    // A tenant that used more stays known, so that jobs that come one by one have no more time than jobs that wait.
    const Duration patience = cpu_time_ == nullptr ? Duration() : kAsksFor;
    std::erase_if(tenants_, [least = least_used_, at_now = now(), patience](const auto& each) {
      return each.second.is_idle() && each.second.used <= least && at_now >= each.second.asked_at + patience;
    });
    ++count(chosen);
    wake();
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
    wake();
  }
  return true;
}

void WorkPool::end(const Next& ended, Duration used) {
  Tenant& tenant = ended.tenant->second;
  tenant.runs[ended.kind] = false;
  tenant.used += used;
  if (cpu_time_ != nullptr && ended.kind != kFile) {
    const TimePoint at_now = now();
    tenant.recent_ms = tenant.recent(at_now) + to_ms(used);
    tenant.recent_at = at_now;
  }
  --count(ended);
}

bool WorkPool::wait(Threads threads) {
  const MutexLock lock(mutex_);
  const auto waits = [](const auto& each) { return each.second.waits(); };
  while (!has_job(threads)) {
    const bool someone_waits = std::ranges::any_of(tenants_, waits);
    if (closed_ && !someone_waits) return false;
    // With time a job becomes one for others than those who were woken for it.
    if (threads == Threads::texts) wake(Threads::patient);
    if (threads == Threads::patient) wake(Threads::texts);
    CondVar& ready = ready_[static_cast<std::size_t>(threads)];
    if (someone_waits && threads == Threads::texts) {
      ready.wait_until(mutex_, SteadyClock().now() + kLooksAgain);
    } else {
      ready.wait(mutex_);
    }
  }
  return true;
}

}  // namespace uma
