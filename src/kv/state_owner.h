// The owner of a stored state, and so who may use it.
#pragma once

#include "core/ids.h"

namespace uma::kv {

struct StateOwner {
  TenantId tenant;
  SessionId session;       // Empty: a prefix without a session, which any request of the tenant may use. See shared_prefix.h.
  bool is_public = false;  // Other tenants may use it, too.
  // Only its session, and sessions forked from it, may use it, because its KV was imported, or must be its own to the bit.
  bool is_private = false;
  bool operator==(const StateOwner&) const = default;
};

}  // namespace uma::kv
