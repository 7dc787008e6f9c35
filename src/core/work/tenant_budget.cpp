#include "core/work/tenant_budget.h"

#include <format>

namespace uma {

std::uint64_t TenantBudget::bytes_used() const {
  const MutexLock lock(mutex_);
  return used_;
}

Expected<Unit> TenantBudget::Share::grow(std::uint64_t bytes) {
  const MutexLock lock(memory_->mutex_);
  return memory_->take(*this, bytes);
}

Expected<Unit> TenantBudget::Share::resize(std::uint64_t bytes) {
  const MutexLock lock(memory_->mutex_);
  if (bytes > bytes_) return memory_->take(*this, bytes - bytes_);
  memory_->give_back(*this, bytes_ - bytes);
  return Unit{};
}

void TenantBudget::Share::give_back() {
  const MutexLock lock(memory_->mutex_);
  memory_->give_back(*this, bytes_);
}

Expected<Unit> TenantBudget::take(Share& share, std::uint64_t bytes) {
  if (bytes == 0) return Unit{};
  const auto found = used_by_.find(share.tenant_);
  const std::uint64_t own = found == used_by_.end() ? 0 : found->second;
  const std::uint64_t left = bytes_max_ - used_;
  // After this, the tenant's bytes do not exceed the free bytes.
  const bool fits = share.tenant_.value.empty() ? bytes <= left : own <= left && bytes <= (left - own) / 2;
  if (!fits) {
    return fail(
        ErrorCode::limit_wait,
        std::format("this request needs {} more bytes, but {} hold {} of {} ({}), {} of them for this tenant, which may "
                    "hold at most as many as it leaves free: try again later",
                    bytes, holders_, used_, bytes_max_, setting_, own));
  }
  used_ += bytes;
  used_by_[share.tenant_] = own + bytes;
  share.bytes_ += bytes;
  return Unit{};
}

void TenantBudget::give_back(Share& share, std::uint64_t bytes) {
  if (bytes == 0) return;
  share.bytes_ -= bytes;
  used_ -= bytes;
  const auto found = used_by_.find(share.tenant_);
  found->second -= bytes;
  if (found->second == 0) used_by_.erase(found);
}

}  // namespace uma
