#include "kv/catalog.h"

#include <ranges>
#include <utility>

#include "base/check.h"

namespace uma::kv {

std::vector<RecordPtr> MemoryCatalog::load() {
  const MutexLock lock(mutex_);
  return std::ranges::to<std::vector>(std::views::values(records_));
}

void MemoryCatalog::commit(RecordPtr record, RecordPtr before, Done done) {
  {
    const MutexLock lock(mutex_);
    RecordPtr& kept = records_[record->id];
    UMA_CHECK(kept == before);
    kept = std::move(record);
  }
  done(Unit{});
}

void MemoryCatalog::remove(const SessionId& id, Done done) {
  {
    const MutexLock lock(mutex_);
    records_.erase(id);
  }
  done(Unit{});
}

RecordPtr MemoryCatalog::find(const SessionId& id) const {
  const MutexLock lock(mutex_);
  const auto found = records_.find(id);
  return found == records_.end() ? nullptr : found->second;
}

std::size_t MemoryCatalog::size() const {
  const MutexLock lock(mutex_);
  return records_.size();
}

}  // namespace uma::kv
