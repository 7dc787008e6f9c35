#include "sched/fair_share.h"

#include <algorithm>

#include "base/check.h"

namespace uma::sched {
namespace {

// The entry of `key`; a new entry begins with the smallest present counter.
template <class Shares, class Key>
auto& joined(Shares& shares, const Key& key) {
  const auto found = shares.find(key);
  if (found != shares.end()) return found->second;
  const auto least = std::ranges::min_element(shares, {}, [](const auto& entry) { return entry.second.work; });
  const double work = least == shares.end() ? 0 : least->second.work;
  auto& added = shares[key];
  added.work = work;
  return added;
}

}  // namespace

void FairShare::enter(const Flow& flow) {
  Tenant& tenant = joined(tenants_, flow.tenant);
  ++tenant.requests;
  ++joined(tenant.clients, flow.client).requests;
}

void FairShare::leave(const Flow& flow) {
  const auto tenant = tenants_.find(flow.tenant);
  UMA_CHECK(tenant != tenants_.end());
  const auto client = tenant->second.clients.find(flow.client);
  UMA_CHECK(client != tenant->second.clients.end());
  if (--client->second.requests == 0) tenant->second.clients.erase(client);
  if (--tenant->second.requests == 0) tenants_.erase(tenant);
}

void FairShare::charge(const Flow& flow, std::int64_t tokens) {
  Tenant& tenant = tenants_.at(flow.tenant);
  tenant.work += static_cast<double>(tokens);
  tenant.clients.at(flow.client).work += static_cast<double>(tokens);
}

FairShare::Rank FairShare::rank(const Flow& flow) const {
  const Tenant& tenant = tenants_.at(flow.tenant);
  return {tenant.work, tenant.clients.at(flow.client).work};
}

}  // namespace uma::sched
