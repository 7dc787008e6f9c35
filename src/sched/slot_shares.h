// Decides how many of a context's slots a tenant may use. A reply has its slot to its end, so everybody's first token would
// wait for a tenant that took all slots. A tenant is sure of an equal share of them: as many as it used at once lately are kept
// free for it. The others go by FairShare, one to each before a second. Only interactive requests count, since background ones
// give way. Pure; owned by one lane. Bounded: beyond kTenantsMax those that have been away for the longest time are forgotten.
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
  static constexpr Duration kLately = std::chrono::seconds(30);   // A slot counts as used for once to twice this time.
  static constexpr Duration kRemembered = std::chrono::hours(1);  // So long one slot is kept for absent tenants.
  static constexpr std::size_t kSlotsForAbsent = 4;               // With fewer slots none is kept for absent tenants.

  struct Use {
    std::size_t running = 0;  // Requests in slots, and those that will go on in one.
    std::size_t ready = 0;    // Requests that wait only for a slot.
    std::size_t stuck = 0;    // Requests that could not use a slot, because they lack cells.
  };
  using Uses = std::map<std::string, Use>;  // By the tenant's name.

  // Call it whenever the uses have changed.
  void note(const Uses& uses, TimePoint now);
  // How many of the free slots the tenant may take.
  [[nodiscard]] std::size_t slots_left(const std::string& tenant, const Uses& uses, std::size_t slots, TimePoint now) const;
  // The number of tenants that are remembered.
  [[nodiscard]] std::size_t tenants() const { return tenants_.size(); }

 private:
  struct Tenant {
    std::size_t running = 0;
    TimePoint seen{};
    std::int64_t period = 0;
    std::size_t peak = 0;         // The most that ran at once in the period,
    std::size_t peak_before = 0;  // and in the one before.

    void note(std::size_t runs, TimePoint now);
    [[nodiscard]] std::size_t peak_lately(TimePoint now) const;
  };

  std::map<std::string, Tenant> tenants_;
};

}  // namespace uma::sched
