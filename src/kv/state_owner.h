// Whose a stored state is, and so who may use it.
#pragma once

#include "core/ids.h"

namespace uma::kv {

struct StateOwner {
  TenantId tenant;
  SessionId session;        // empty: of no session, a prefix that any of the tenant's may use
  bool is_public = false;   // other tenants may use it too
  bool is_private = false;  // only its session and those that began as a copy of it may: its numbers came from elsewhere
  bool operator==(const StateOwner&) const = default;
};

}  // namespace uma::kv
