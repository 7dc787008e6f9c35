#include "sched/recent_work.h"

#include <algorithm>
#include <utility>

namespace uma::sched {

void RecentWork::age(TimePoint now) {
  const TimePoint before = std::exchange(as_of_, now);
  const Duration passed = before == TimePoint{} ? Duration{} : now - before;  // Nothing is older than the first call.
  for (auto& [tenant, work] : tenants_) work = aged(work, passed);
  std::erase_if(tenants_, [](const auto& entry) { return entry.second < 1; });
  while (tenants_.size() > kTenantsMax) {
    tenants_.erase(std::ranges::min_element(tenants_, {}, [](const auto& entry) { return entry.second; }));
  }
}

}  // namespace uma::sched
