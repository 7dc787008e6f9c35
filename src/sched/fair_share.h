// Decides whose request is next. Tenants share the machine by the work done for them, and so do the clients of a tenant, so
// that a tenant with fifty requests does not starve one with a single request. Each tenant and client has a counter of work;
// the smallest goes first (virtual token counters: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). Pure;
// owned by one lane. Invariant: a new tenant or client starts at the smallest present counter, so absence earns neither credit
// nor debt.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>

namespace uma::sched {

struct Flow {
  std::string tenant;
  std::uint64_t client = 0;  // A connection; 0: unknown.
  auto operator<=>(const Flow&) const = default;
};

class FairShare {
 public:
  // Position in the order; a smaller rank goes first.
  struct Rank {
    double tenant_work = 0;
    double client_work = 0;
    auto operator<=>(const Rank&) const = default;
  };

  // Registers a request of the flow. Each call is followed by one leave().
  void enter(const Flow& flow);
  void leave(const Flow& flow);
  // Charges `tokens` > 0 that were computed, or certainly will be, to a flow that has entered.
  void charge(const Flow& flow, std::int64_t tokens);
  // The rank of a flow that has entered.
  [[nodiscard]] Rank rank(const Flow& flow) const;

 private:
  struct Share {
    double work = 0;
    std::int64_t requests = 0;
  };
  struct Tenant : Share {
    std::map<std::uint64_t, Share> clients;
  };

  std::map<std::string, Tenant> tenants_;
};

}  // namespace uma::sched
