// A fake engine for the pool's tests: models that were loaded, and figures that the test sets.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/model/model_loader.h"

namespace uma::pool {

class FakeHost final : public engine::LoaderDelegate {
 public:
  void on_load_progress(const std::string&, double) override {}
  void on_loaded(const std::string& model, Expected<engine::LoadedWorkers> made) override {
    const MutexLock lock(mutex_);
    if (made) {
      loaded_.insert_or_assign(model, std::move(*made));
    } else {
      errors_[model] = made.error().message;
    }
  }
  void add_workers(const std::string& model, engine::LoadedWorkers more) override {
    const MutexLock lock(mutex_);
    further_[model].push_back(std::move(more));
  }
  [[nodiscard]] bool shrink_workers(const std::string& model, std::size_t) override {
    std::vector<engine::LoadedWorkers> freed;
    const MutexLock lock(mutex_);
    if (uses_[model] > 0) return false;
    freed = std::move(further_[model]);
    further_.erase(model);
    return true;
  }
  void on_load_queued(const std::string& model, std::uint64_t bytes) override {
    const MutexLock lock(mutex_);
    queued_[model] = bytes;
  }
  [[nodiscard]] engine::StoredStates stored() override {
    if (on_stored) on_stored();
    return {.bytes = stored_bytes, .bytes_max = stored_max};
  }
  void limit_stored(kv::MemoryLimit next) override {
    limit = next;
    if (on_limit) on_limit(next);
  }
  [[nodiscard]] bool retire(const std::string& model) override {
    engine::LoadedWorkers freed;
    const MutexLock lock(mutex_);
    const auto found = loaded_.find(model);
    if (found == loaded_.end() || uses_[model] > 0) return false;
    freed = std::move(found->second);
    loaded_.erase(found);
    further_.erase(model);
    return true;
  }
  [[nodiscard]] std::vector<engine::ModelUsage> usage() override {
    const MutexLock lock(mutex_);
    std::vector<engine::ModelUsage> usages;
    for (const auto& [model, uses] : uses_) {
      usages.push_back({.name = model,
                        .uses = uses,
                        .waiting = queued_.contains(model) && !loaded_.contains(model) ? 1 : 0,
                        .background_uses = background_.contains(model) ? uses : 0,
                        .idle_s = 1000,
                        .is_loaded = loaded_.contains(model)});
    }
    return usages;
  }

  [[nodiscard]] bool has_streams() const override { return false; }
  void hold_background(const std::string& model, bool holds) override {
    const MutexLock lock(mutex_);
    if (holds) {
      held_.insert(model);
    } else {
      held_.erase(model);
    }
  }

  // Any thread.
  void set_uses(const std::string& model, std::int64_t uses, bool are_background = false) {
    const MutexLock lock(mutex_);
    uses_[model] = uses;
    if (are_background) background_.insert(model);
  }
  [[nodiscard]] bool is_held(const std::string& model) const {
    const MutexLock lock(mutex_);
    return held_.contains(model);
  }
  [[nodiscard]] bool has(const std::string& model) const {
    const MutexLock lock(mutex_);
    return loaded_.contains(model);
  }
  // Error of its last load; empty: none.
  [[nodiscard]] std::string error_of(const std::string& model) const {
    const MutexLock lock(mutex_);
    const auto found = errors_.find(model);
    return found == errors_.end() ? "" : found->second;
  }
  // Bytes that its load waits for.
  [[nodiscard]] std::uint64_t queued_bytes(const std::string& model) const {
    const MutexLock lock(mutex_);
    const auto found = queued_.find(model);
    return found == queued_.end() ? 0 : found->second;
  }

  // Set before other threads read it.
  std::uint64_t stored_bytes = 0;
  std::uint64_t stored_max = 0;
  std::function<void()> on_stored = nullptr;
  std::function<void(const kv::MemoryLimit&)> on_limit = nullptr;
  // The last limit; read it only while no other thread changes it.
  kv::MemoryLimit limit;

 private:
  mutable Mutex mutex_;
  std::map<std::string, engine::LoadedWorkers> loaded_ GUARDED_BY(mutex_);
  // Workers that were added after the load.
  std::map<std::string, std::vector<engine::LoadedWorkers>> further_ GUARDED_BY(mutex_);
  std::map<std::string, std::string> errors_ GUARDED_BY(mutex_);
  std::map<std::string, std::uint64_t> queued_ GUARDED_BY(mutex_);
  std::map<std::string, std::int64_t> uses_ GUARDED_BY(mutex_);
  std::set<std::string> background_ GUARDED_BY(mutex_);  // Models whose leases are background requests.
  std::set<std::string> held_ GUARDED_BY(mutex_);
};

}  // namespace uma::pool
