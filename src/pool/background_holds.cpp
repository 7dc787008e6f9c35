#include "pool/background_holds.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace uma::pool {

bool BackgroundHolds::contain(const std::string& model) const {
  const MutexLock lock(mutex_);
  return counts_.contains(model);
}

void BackgroundHolds::change(const std::vector<std::string>& models, std::int32_t change) {
  for (const std::string& model : models) {
    const MutexLock lock(mutex_);
    std::int32_t& count = counts_[model];
    const bool was_held = std::exchange(count, count + change) > 0;
    const bool is_held = count > 0;
    if (!is_held) counts_.erase(model);
    if (was_held != is_held) host_->hold_background(model, is_held);
  }
}

void BackgroundHold::add(std::vector<std::string> models) {
  std::erase_if(models, [this](const std::string& model) { return std::ranges::contains(models_, model); });
  holds_.change(models, 1);
  std::ranges::move(models, std::back_inserter(models_));
}

}  // namespace uma::pool
