#include "kv/catalog.h"

#include <utility>

namespace uma::kv {

void MemoryCatalog::commit(RecordPtr record, Done done) {
  {
    const MutexLock lock(mutex_);
    const SessionId& id = record->id;
    records_[id] = std::move(record);
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
