// Decides how many of a context's slots a tenant may use. A reply has its slot to its end, so everybody's first token would
// wait for a tenant that took all slots. A tenant that has asked lately is sure of an equal share of them, or of as many as it
// had requests at once, if these are fewer: they are kept free for it. FairShare decides whose request is next in the others.
// Only interactive requests count, since background ones give way. Pure; owned by one lane. Bounded: beyond kTenantsMax the
// tenant that has been away for the longest time is forgotten.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "base/clock.h"

namespace uma::sched {

class SlotShares {
 public:
  static constexpr std::size_t kTenantsMax = 64;
  static constexpr Duration kLately = std::chrono::seconds(30);   // A request counts for once to twice this time.
  static constexpr Duration kRemembered = std::chrono::hours(1);  // So long one slot is kept for absent tenants,
  static constexpr std::size_t kSlotsForAbsent = 4;               // if there are so many.

  struct Use {
    std::size_t running = 0;  // Requests in slots.
    std::size_t ready = 0;    // Requests that wait only for a slot.
  };
  using Uses = std::map<std::string, Use>;  // Of each tenant.

  // Registers a request. Each call is followed by one leave().
  void enter(const std::string& tenant, TimePoint now);
  void leave(const std::string& tenant, TimePoint now);
  // Whether there are tenants to share with.
  [[nodiscard]] bool are_many() const { return tenants_.size() > 1; }
  // Whether a request of the tenant may take one of the free slots. Requires: no more requests run than there are slots.
  [[nodiscard]] bool may_take(const std::string& tenant, const Uses& uses, std::size_t slots, TimePoint now) const;

 private:
  struct Tenant {
    std::size_t open = 0;
    TimePoint seen{};
    std::int64_t period = 0;
    std::size_t peak = 0;         // The most that were open at once in the period,
    std::size_t peak_before = 0;  // and in the one before.

    void note(TimePoint now);
    [[nodiscard]] std::size_t peak_lately(TimePoint now) const;
  };

  void forget_oldest();

  std::map<std::string, Tenant> tenants_;
};

}  // namespace uma::sched
