// Health of the daemon (docs/METRICS.md). The metrics themselves are in wire/metrics_codec.h.
#pragma once

#include <string>

#include "core/metrics_snapshot.h"
#include "core/session_info.h"

namespace uma::wire {

// Longer than any library call takes.
inline constexpr double kStalledAfterS = 30;

// Whether requests are open and, for kStalledAfterS, nothing was computed, although at least one request was ready.
[[nodiscard]] bool is_stalled(const MetricsSnapshot& metrics);

// Whether the daemon is ready and not stalled. Its load does not matter.
[[nodiscard]] bool is_healthy(const MetricsSnapshot& metrics, ModelState model);
[[nodiscard]] std::string health_json(const MetricsSnapshot& metrics, ModelState model);

}  // namespace uma::wire
