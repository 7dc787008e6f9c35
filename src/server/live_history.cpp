#include "server/live_history.h"

#include <utility>

namespace uma::server {

void LiveHistory::add(TimePoint now, double unix_ms, const MetricsSnapshot& metrics, std::optional<double> pause_ms) {
  const Totals totals{.at = now,
                      .tokens = metrics.tokens_total,
                      .prompt_tokens = metrics.prompt_tokens_total,
                      .reused_tokens = metrics.reused_tokens_total};
  const std::optional<Totals> before = std::exchange(before_, totals);
  const auto rate = [&](std::uint64_t Totals::* total) -> std::optional<double> {
    if (!before || before->at >= now) return std::nullopt;
    return static_cast<double>(totals.*total - (*before).*total) * 1000 / to_ms(now - before->at);
  };
  points_.push_back({now,
                     {.unix_ms = unix_ms,
                      .tokens_per_s = rate(&Totals::tokens),
                      .prompt_per_s = rate(&Totals::prompt_tokens),
                      .reused_per_s = rate(&Totals::reused_tokens),
                      .streams = metrics.sequences_active,
                      .queue = metrics.queue_depth + metrics.embed_queue_depth + metrics.picture_queue_depth,
                      .pause_ms = pause_ms,
                      .reserved_bytes = metrics.memory_reserved_bytes,
                      .hot_bytes = metrics.hot_bytes,
                      .warm_bytes = metrics.warm_bytes,
                      .cold_bytes = metrics.cold_bytes}});
  if (points_.size() > kPointsMax) points_.pop_front();
}

std::vector<wire::LivePoint> LiveHistory::last(TimePoint now, Duration span) const {
  std::vector<wire::LivePoint> points;
  for (const Kept& kept : points_) {
    if (now - kept.at <= span) points.push_back(kept.point);
  }
  return points;
}

}  // namespace uma::server
