#include "sched/slot_shares.h"

#include <algorithm>

#include "base/check.h"

namespace uma::sched {
namespace {

std::int64_t period_of(TimePoint now) {
  return now.time_since_epoch() / SlotShares::kLately;
}

std::size_t excess(std::size_t wanted, std::size_t had) {
  return wanted - std::min(wanted, had);
}

}  // namespace

void SlotShares::Tenant::note(TimePoint now) {
  peak_before = period_of(now) == period ? peak_before : period_of(now) == period + 1 ? peak : open;
  peak = period_of(now) == period ? std::max(peak, open) : open;
  period = period_of(now);
  seen = now;
}

std::size_t SlotShares::Tenant::peak_lately(TimePoint now) const {
  const std::int64_t periods = period_of(now) - period;
  return periods == 0 ? std::max(peak, peak_before) : periods == 1 ? std::max(peak, open) : open;
}

void SlotShares::enter(const std::string& tenant, TimePoint now) {
  Tenant& entered = tenants_[tenant];
  entered.note(now);  // What was open until now belongs to the time before.
  ++entered.open;
  entered.note(now);
  if (tenants_.size() > kTenantsMax) forget_oldest();
}

void SlotShares::leave(const std::string& tenant, TimePoint now) {
  Tenant& left = tenants_.at(tenant);
  UMA_CHECK(left.open > 0);
  left.note(now);
  --left.open;
}

void SlotShares::forget_oldest() {
  const auto oldest = std::ranges::min_element(
      tenants_, {}, [](const auto& entry) { return entry.second.open > 0 ? kNever : entry.second.seen; });
  if (oldest->second.open == 0) tenants_.erase(oldest);
}

bool SlotShares::may_take(const std::string& tenant, const Uses& uses, std::size_t slots, TimePoint now) const {
  const auto use_of = [&](const std::string& name) {
    const auto found = uses.find(name);
    return found == uses.end() ? Use{} : found->second;
  };
  std::size_t sharers = 1;
  bool is_one_absent = false;
  for (const auto& [name, other] : tenants_) {
    if (name == tenant) continue;
    const bool asked_lately = other.peak_lately(now) > 0;
    sharers += asked_lately ? 1 : 0;
    is_one_absent |= !asked_lately && now < other.seen + kRemembered && slots >= kSlotsForAbsent;
  }
  const std::size_t shared = slots - (is_one_absent ? 1 : 0);
  const std::size_t least = std::max<std::size_t>(1, shared / sharers);
  const std::size_t most = (shared + sharers - 1) / sharers;
  if (use_of(tenant).running < least) return true;
  std::size_t free = slots;
  for (const auto& [name, use] : uses) free -= use.running;
  std::size_t kept = 0;
  std::size_t kept_for_absent = is_one_absent ? 1 : 0;
  for (const auto& [name, other] : tenants_) {
    if (name == tenant) continue;
    const std::size_t peak = other.peak_lately(now);
    const Use use = use_of(name);
    // What is left over by dividing is not kept for who waits for it: whose turn it is decides.
    const std::size_t missing =
        std::max(excess(std::min(peak, least), use.running), excess(std::min(peak, most), use.running + use.ready));
    (other.open > 0 ? kept : kept_for_absent) += missing;
  }
  // Many who ask now and then do not all come at once.
  return free > kept + std::min(kept_for_absent, slots / 2);
}

}  // namespace uma::sched
