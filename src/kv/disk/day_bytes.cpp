#include "kv/disk/day_bytes.h"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace uma::kv {
namespace {

std::size_t place_of(std::int64_t hour) {
  return static_cast<std::size_t>(hour % 24);
}

std::uint64_t sum_of(const auto& hours) {
  return std::reduce(hours.begin(), hours.end());
}

}  // namespace

void DayBytes::drop_old(TimePoint now) {
  const std::int64_t hour = std::chrono::duration_cast<std::chrono::hours>(now.time_since_epoch()).count();
  for (std::int64_t each = std::max(hour_, hour - 24) + 1; each <= hour; ++each) {
    for (auto& [tenant, hours] : of_tenant_) hours.at(place_of(each)) = 0;
  }
  hour_ = std::max(hour_, hour);
  std::erase_if(of_tenant_, [](const auto& tenant) { return sum_of(tenant.second) == 0; });
}

void DayBytes::add(const TenantId& tenant, std::uint64_t bytes, TimePoint now) {
  drop_old(now);
  if (bytes > 0) of_tenant_[tenant].at(place_of(hour_)) += bytes;
}

std::uint64_t DayBytes::total(TimePoint now) {
  drop_old(now);
  std::uint64_t bytes = 0;
  for (const auto& [tenant, hours] : of_tenant_) bytes += sum_of(hours);
  return bytes;
}

bool DayBytes::is_full(const TenantId& tenant, std::uint64_t most, TimePoint now) {
  drop_old(now);
  const auto own = of_tenant_.find(tenant);
  if (own == of_tenant_.end()) return false;
  return sum_of(own->second) >= most / of_tenant_.size();
}

}  // namespace uma::kv
