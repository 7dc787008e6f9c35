#include "engine/lane/run/sampling_team.h"

#include <system_error>

#include "base/log.h"
#include "base/system/thread_name.h"

namespace uma::engine {

SamplingTeam::SamplingTeam(std::int32_t threads) {
  try {
    for (std::int32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { serve(); });
  } catch (const std::system_error& problem) {
    log_warning("tokens are chosen by {} threads, not {}: {}", threads_.size() + 1, threads + 1, problem.what());
  }
}

SamplingTeam::~SamplingTeam() {
  {
    const MutexLock lock(mutex_);
    is_closed_ = true;
  }
  has_begun_.notify_all();
}

void SamplingTeam::take(const std::function<void(std::size_t)>& work, std::size_t count) {
  for (std::size_t i = next_.fetch_add(1); i < count; i = next_.fetch_add(1)) work(i);
}

void SamplingTeam::run(std::size_t count, const std::function<void(std::size_t)>& work) {
  {
    const MutexLock lock(mutex_);
    next_.store(0);
    work_ = &work;
    count_ = count;
    busy_ = threads_.size();
    ++round_;
  }
  has_begun_.notify_all();
  take(work, count);
  const MutexLock lock(mutex_);
  while (busy_ > 0) has_ended_.wait(mutex_);
}

void SamplingTeam::serve() {
  set_thread_name("uma-sample");
  std::uint64_t seen = 0;
  while (true) {
    const std::function<void(std::size_t)>* work = nullptr;
    std::size_t count = 0;
    {
      const MutexLock lock(mutex_);
      while (!is_closed_ && round_ == seen) has_begun_.wait(mutex_);
      if (is_closed_) return;
      seen = round_;
      work = work_;
      count = count_;
    }
    take(*work, count);
    const MutexLock lock(mutex_);
    if (--busy_ == 0) has_ended_.notify_all();
  }
}

}  // namespace uma::engine
