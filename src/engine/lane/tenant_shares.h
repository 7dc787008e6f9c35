// The work that the lane has done for each tenant and client, and their shares. Owned by the lane's thread.
#pragma once

#include <cstdint>

#include "sched/fair_share.h"
#include "sched/recent_work.h"
#include "sched/slot_shares.h"

namespace uma::engine {

struct TenantShares {
  sched::FairShare shares;
  sched::SlotShares slot_shares;
  sched::RecentWork recent_work;

  void charge(const sched::Flow& flow, std::int64_t tokens) {
    shares.charge(flow, tokens);
    recent_work.add(flow.tenant, tokens);
  }
};

}  // namespace uma::engine
