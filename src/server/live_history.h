// The last hour of the daemon in points of ten seconds. Pure; bounded.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "core/metrics_snapshot.h"
#include "wire/own/live_json.h"

namespace uma::server {

class LiveHistory {
 public:
  static constexpr Duration kStep = std::chrono::seconds(10);
  static constexpr std::size_t kPointsMax = wire::LiveRequest::kHistoryMax / kStep;

  // Takes what the daemon says at `now`. Rates are those since the last point; the first point has none.
  void add(TimePoint now, double unix_ms, const MetricsSnapshot& metrics, std::optional<double> pause_ms);
  // The points of the last `span`, the oldest first.
  [[nodiscard]] std::vector<wire::LivePoint> last(TimePoint now, Duration span) const;

 private:
  struct Kept {
    TimePoint at;
    wire::LivePoint point;
  };
  struct Totals {
    TimePoint at;
    std::uint64_t tokens = 0;
    std::uint64_t prompt_tokens = 0;
    std::uint64_t reused_tokens = 0;
  };

  std::deque<Kept> points_;
  std::optional<Totals> before_;
};

}  // namespace uma::server
