#include "core/request_memory.h"

#include <format>

namespace uma {

std::uint64_t RequestMemory::bytes_used() const {
  const MutexLock lock(mutex_);
  return used_;
}

Expected<Unit> RequestMemory::Share::grow(std::uint64_t bytes) {
  const MutexLock lock(memory_->mutex_);
  return memory_->take(*this, bytes);
}

Expected<Unit> RequestMemory::Share::resize(std::uint64_t bytes) {
  const MutexLock lock(memory_->mutex_);
  if (bytes > bytes_) return memory_->take(*this, bytes - bytes_);
  memory_->give_back(*this, bytes_ - bytes);
  return Unit{};
}

void RequestMemory::Share::give_back() {
  const MutexLock lock(memory_->mutex_);
  memory_->give_back(*this, bytes_);
}

Expected<Unit> RequestMemory::take(Share& share, std::uint64_t bytes) {
  if (bytes == 0) return Unit{};
  const auto found = used_by_.find(share.tenant_);
  const std::uint64_t own = found == used_by_.end() ? 0 : found->second;
  const std::uint64_t left = bytes_max_ - used_;
  // Afterwards its own are no more than what is left.
  if (own > left || bytes > (left - own) / 2) {
    return fail(ErrorCode::limit_wait,
                std::format("requests under way hold {} bytes, {} of them this tenant's, which may hold no more than it leaves "
                            "free of limits.queue_bytes_max, {}: {} more are too many, try again later",
                            used_, own, bytes_max_, bytes));
  }
  used_ += bytes;
  used_by_[share.tenant_] = own + bytes;
  share.bytes_ += bytes;
  return Unit{};
}

void RequestMemory::give_back(Share& share, std::uint64_t bytes) {
  if (bytes == 0) return;
  share.bytes_ -= bytes;
  used_ -= bytes;
  const auto found = used_by_.find(share.tenant_);
  found->second -= bytes;
  if (found->second == 0) used_by_.erase(found);
}

}  // namespace uma
