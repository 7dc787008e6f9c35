// Adds up the numbers of lanes, models and the state store in one snapshot. One object makes one snapshot; not thread-safe. The
// counters that it reads may change meanwhile.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/metrics.h"
#include "core/metrics_snapshot.h"
#include "engine/lane/lane_stats.h"
#include "engine/lane/run/embed_lane.h"
#include "engine/lane/run/picture_lane.h"
#include "image/image_encoder.h"
#include "kv/state_store.h"
#include "llm/model.h"

namespace uma::engine {

// Several histograms as one.
class MergedHistogram {
 public:
  void add(const LatencyHistogram& histogram);
  [[nodiscard]] std::uint64_t count() const { return count_; }
  // 0 when nothing was recorded.
  [[nodiscard]] double mean_ms() const;
  [[nodiscard]] double percentile_ms(double quantile) const { return LatencyHistogram::percentile_ms(counts_, quantile); }
  // The histogram in the few buckets that metrics have.
  [[nodiscard]] HistogramSnapshot snapshot() const;

 private:
  LatencyHistogram::Counts counts_{};
  double sum_ms_ = 0;
  std::uint64_t count_ = 0;
};

class MetricsCollector {
 public:
  // `begun` has all numbers that do not come from lanes. `waiting_since_us` is when the oldest request without a lane was
  // received; 0: there is no such request.
  MetricsCollector(MetricsSnapshot begun, std::int64_t waiting_since_us)
      : snapshot_(std::move(begun)), waiting_since_us_(waiting_since_us) {}

  // Adds a worker of the model. Without a shape the worker is gone, and only its counters are added.
  void add(const std::string& model, const LaneStats& stats, const llm::ContextShape& shape);
  void add(const EmbedStats& stats);
  void add(const PictureStats& stats);
  void add(const image::ImageEncoderStats& stats);
  void add(const kv::StoreStats& stats);
  void add(const kv::SharedStats& stats);

  // The complete snapshot. Call it after all add(). `now` is by the clock of the lanes.
  [[nodiscard]] MetricsSnapshot finish(TimePoint now);

 private:
  // Sums over the lanes, of which the snapshot has only the quotients.
  struct Totals {
    std::uint64_t decode_ticks = 0;
    std::uint64_t decode_rows = 0;
    std::uint64_t logits_rows = 0;
    std::uint64_t logits_copied = 0;
    std::int64_t cells_used = 0;
    std::int64_t cells = 0;
    double bytes_moved = 0;
    double bytes_moved_per_token = 0;  // The maximum over the lanes.
    double calls_s = 0;
  };

  void add_histograms(const LaneStats& stats);
  void finish_ratios();
  void finish_times();

  MetricsSnapshot snapshot_;
  std::int64_t waiting_since_us_ = 0;
  std::int64_t last_call_us_ = 0;
  std::int64_t last_decode_us_ = 0;
  Totals totals_;
  MergedHistogram image_encode_, inter_token_, ttft_, queue_wait_, decode_call_, prefill_call_, sampling_, restore_,
      warm_restore_, cold_restore_, shared_restore_, save_, handover_, embed_call_, embed_request_, picture_call_,
      picture_request_;
};

}  // namespace uma::engine
