// Calls that wait, in turns by tenant, so that one with many delays only its own. The calls of a tenant keep their order. Owned
// by one thread.
#pragma once

#include <deque>
#include <unordered_map>
#include <utility>

#include "core/ids.h"

namespace uma::kv {

template <class CallT>
class TenantTurns {
 public:
  void add(const TenantId& tenant, CallT call) {
    std::deque<CallT>& own = calls_[tenant];
    if (own.empty()) turns_.push_back(tenant);
    own.push_back(std::move(call));
  }
  [[nodiscard]] bool empty() const { return turns_.empty(); }
  // Requires: a call waits.
  [[nodiscard]] CallT next() {
    const auto found = calls_.find(turns_.front());
    turns_.pop_front();
    CallT call = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) {
      calls_.erase(found);
    } else {
      turns_.push_back(found->first);
    }
    return call;
  }

 private:
  std::unordered_map<TenantId, std::deque<CallT>> calls_;  // None is empty.
  std::deque<TenantId> turns_;                             // Each of those once.
};

}  // namespace uma::kv
