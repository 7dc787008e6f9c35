// Whose request is next: tenants share the machine by the work done for them, and within a tenant its clients do, so that one
// with fifty requests does not starve another with one. A counter of work per tenant and per client, the smallest goes first
// (virtual token counters: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). Pure; owned by one lane.
// Invariant: who comes starts at the smallest counter present, so nobody saves up or owes for the time it was away.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>

namespace uma::sched {

struct Flow {
  std::string tenant;
  std::uint64_t client = 0;  // a connection, 0: unknown
  auto operator<=>(const Flow&) const = default;
};

class FairShare {
 public:
  // What the order compares; smaller goes first.
  struct Rank {
    double tenant_work = 0;
    double client_work = 0;
    auto operator<=>(const Rank&) const = default;
  };

  // A request of the flow has come. Each is followed by one leave() at its end.
  void enter(const Flow& flow);
  void leave(const Flow& flow);
  // `tokens` > 0 were computed, or will be for certain, for a flow that has entered.
  void charge(const Flow& flow, std::int64_t tokens);
  // Of a flow that has entered.
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
