#include "sched/slot_shares.h"

#include <algorithm>

namespace uma::sched {
namespace {

std::int64_t period_of(TimePoint now) {
  return now.time_since_epoch() / SlotShares::kLately;
}

std::size_t excess(std::size_t wanted, std::size_t had) {
  return wanted - std::min(wanted, had);
}

}  // namespace

void SlotShares::Tenant::note(std::size_t runs, TimePoint now) {
  const std::int64_t passed = period_of(now) - period;
  if (passed > 0) {
    peak_before = passed == 1 ? peak : running;
    peak = running;
    period += passed;
  }
  running = runs;
  peak = std::max(peak, runs);
}

std::size_t SlotShares::Tenant::peak_lately(TimePoint now) const {
  const std::int64_t passed = period_of(now) - period;
  return passed <= 0 ? std::max(peak, peak_before) : passed == 1 ? peak : running;
}

void SlotShares::note(const Uses& uses, TimePoint now) {
  for (auto& [name, tenant] : tenants_) {
    if (!uses.contains(name)) tenant.note(0, now);
  }
  for (const auto& [name, use] : uses) {
    Tenant& tenant = tenants_[name];
    tenant.note(use.running, now);
    tenant.seen = now;
  }
  std::erase_if(tenants_,
                [now](const auto& entry) { return entry.second.running == 0 && now >= entry.second.seen + kRemembered; });
  while (tenants_.size() > kTenantsMax) {
    tenants_.erase(std::ranges::min_element(tenants_, {}, [](const auto& entry) { return entry.second.seen; }));
  }
}

std::size_t SlotShares::slots_left(const std::string& tenant, const Uses& uses, std::size_t slots, TimePoint now) const {
  const auto use_of = [&](const std::string& name) {
    const auto found = uses.find(name);
    return found == uses.end() ? Use{} : found->second;
  };
  std::size_t used = 0;
  for (const auto& [name, use] : uses) used += use.running;
  const std::size_t free = excess(slots, used);
  std::size_t sharers = 1;
  bool is_one_absent = false;
  for (const auto& [name, other] : tenants_) {
    if (name == tenant) continue;
    const bool uses_slots = other.peak_lately(now) > 0 || use_of(name).ready > 0;
    sharers += uses_slots ? 1 : 0;
    is_one_absent |= !uses_slots && now < other.seen + kRemembered && slots >= kSlotsForAbsent;
  }
  const std::size_t shared = slots - (is_one_absent ? 1 : 0);
  const std::size_t least = std::max<std::size_t>(1, shared / sharers);
  const std::size_t most = (shared + sharers - 1) / sharers;
  const std::size_t own = use_of(tenant).running;
  std::size_t kept_for_ready = 0;
  std::size_t kept_for_absent = is_one_absent ? 1 : 0;
  for (const auto& [name, other] : tenants_) {
    if (name == tenant) continue;
    const Use use = use_of(name);
    const std::size_t has = use.running + use.stuck;
    const std::size_t wanted = std::max(other.peak_lately(now), has + use.ready);
    // The remainder of the division is kept only from those who have their part of it.
    const std::size_t missing = excess(std::min(wanted, own < most ? least : most), has);
    const std::size_t comes_now = std::min(missing, use.ready);
    kept_for_ready += comes_now;
    kept_for_absent += missing - comes_now;
  }
  // Tenants who ask now and then do not all come at once.
  const std::size_t kept = kept_for_ready + std::min(kept_for_absent, slots < kSlotsForAbsent ? 0 : slots / 2);
  return std::min(free, std::max(excess(least, own), excess(free, kept)));
}

}  // namespace uma::sched
