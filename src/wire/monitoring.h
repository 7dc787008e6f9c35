// What is told to who watches the daemon: its numbers as Prometheus' text, and whether work gets done. docs/METRICS.md.
#pragma once

#include <string>

#include "core/metrics_snapshot.h"
#include "core/session_info.h"

namespace uma::wire {

// The numbers of a snapshot: the names of docs/METRICS.md after "uma_", and the histograms.
[[nodiscard]] std::string metrics_text(const MetricsSnapshot& metrics);

// Longer than any library call takes.
inline constexpr double kStalledAfterS = 30;

// Requests are open, and for kStalledAfterS nothing was computed, though one of them could have been.
[[nodiscard]] bool is_stalled(const MetricsSnapshot& metrics);

// Whether the daemon does what it is for: ready, and not stalled. Its load does not count.
[[nodiscard]] bool is_healthy(const MetricsSnapshot& metrics, ModelState model);
[[nodiscard]] std::string health_json(const MetricsSnapshot& metrics, ModelState model);

}  // namespace uma::wire
