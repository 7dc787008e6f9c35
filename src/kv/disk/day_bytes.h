// The bytes that were written in the last 24 hours, for a limit that tenants share equally. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "base/clock.h"
#include "core/ids.h"

namespace uma::kv {

class DayBytes {
 public:
  void add(const TenantId& tenant, std::uint64_t bytes, TimePoint now);
  // The bytes of all tenants.
  [[nodiscard]] std::uint64_t total(TimePoint now);
  // Whether the tenant has written its share of `most`: that of each tenant that has written, and of itself.
  [[nodiscard]] bool is_full(const TenantId& tenant, std::uint64_t most, TimePoint now);

 private:
  using Hours = std::array<std::uint64_t, 24>;

  void drop_old(TimePoint now);

  std::map<TenantId, Hours> of_tenant_;  // The tenants that have written; by hour, modulo 24.
  std::int64_t hour_ = 0;                // The last one.
};

}  // namespace uma::kv
