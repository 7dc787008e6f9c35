// Prefixes of prompts in the store that daemons share, such as a system prompt with its tools. A prefix has an owner of its
// own, as if it were a session. So it is stored, found, bounded and removed like the state of a session, and any request in the
// owner's scope may use it.
#pragma once

#include <span>

#include "core/ids.h"
#include "kv/state_owner.h"

namespace uma::kv {

// The owner of a prefix's state: all requests of `tenant` may use it, or those of all tenants if `is_public`. Its session is
// made of a SHA-256 hash of scope and tokens, so equal prefixes have the same one on every daemon, and those of two tenants
// never do. The user of a state compares its tokens. O(tokens).
[[nodiscard]] StateOwner prefix_owner(const TenantId& tenant, bool is_public, std::span<const Token> tokens);
// Whether the session of a stored state stands for a prefix. No session of a client has such an id.
[[nodiscard]] bool is_prefix(const SessionId& session);

}  // namespace uma::kv
