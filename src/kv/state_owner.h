// Whose a stored state is and who may use it.
#pragma once

#include "core/ids.h"

namespace uma::kv {

struct StateOwner {
  TenantId tenant;
  SessionId session;       // empty: nobody's; it stays for whoever begins alike
  bool is_public = false;  // other tenants may use it

  bool operator==(const StateOwner&) const = default;
};

}  // namespace uma::kv
