// How long a request waits for what other nodes have. It meets each of these waits once at most, but that a session which
// another node takes meanwhile is taken again. Where a wait ends without a result, the tokens of the state are computed; only
// kTakeMax ends in a refusal (E_SESSION_002).
#pragma once

#include <chrono>

#include "base/clock.h"

namespace uma::kv {

// The node that owns the session gives it up.
inline constexpr Duration kTakeMax = std::chrono::seconds(5);
// That node meanwhile stores the session's state where others find it.
inline constexpr Duration kHandOverMax = std::chrono::seconds(2);
static_assert(kHandOverMax < kTakeMax);
// The states of a session that was taken are looked up.
inline constexpr Duration kStateLookUpMax = std::chrono::milliseconds(500);
// The KV of a new conversation's system prompt is looked up.
inline constexpr Duration kPrefixLookUpMax = std::chrono::milliseconds(500);
// A state is read; or as long as computing its tokens takes, if that is more.
inline constexpr Duration kStateReadMax = std::chrono::seconds(2);

// All of them together, for a state that is computed within kStateReadMax.
inline constexpr Duration kSharedWaitMax = kTakeMax + kStateLookUpMax + kPrefixLookUpMax + kStateReadMax;

}  // namespace uma::kv
