#include "engine/metrics_collector.h"

#include <algorithm>
#include <cstddef>
#include <optional>

namespace uma::engine {
namespace {

// One row for each number: the counter of a lane or of another part that is added to it.
template <class Stats>
struct CounterSum {
  Counter Stats::* from;
  std::uint64_t MetricsSnapshot::* to;
};
template <class Stats>
struct GaugeSum {
  Gauge Stats::* from;
  std::int64_t MetricsSnapshot::* to;
};

constexpr CounterSum<LaneStats> kLaneCounters[] = {
    {&LaneStats::requests_failed_total, &MetricsSnapshot::requests_failed_total},
    {&LaneStats::requests_cancelled_total, &MetricsSnapshot::requests_cancelled_total},
    {&LaneStats::tokens_total, &MetricsSnapshot::tokens_total},
    {&LaneStats::prompt_tokens_total, &MetricsSnapshot::prompt_tokens_total},
    {&LaneStats::reused_tokens_total, &MetricsSnapshot::reused_tokens_total},
    {&LaneStats::batch_calls_total, &MetricsSnapshot::batch_calls_total},
    {&LaneStats::ticks_total, &MetricsSnapshot::ticks_total},
    {&LaneStats::preemptions_total, &MetricsSnapshot::preemptions_total},
    {&LaneStats::moved_cells_total, &MetricsSnapshot::moved_cells_total},
    {&LaneStats::idle_stored_total, &MetricsSnapshot::idle_stored_total},
    {&LaneStats::context_shifts_total, &MetricsSnapshot::context_shifts_total},
    {&LaneStats::adapter_requests_total, &MetricsSnapshot::adapter_requests_total},
    {&LaneStats::adapter_changes_total, &MetricsSnapshot::adapter_changes_total},
    {&LaneStats::reuses_verified_total, &MetricsSnapshot::reuses_verified_total},
    {&LaneStats::reuses_wrong_total, &MetricsSnapshot::reuses_wrong_total},
    {&LaneStats::not_finite_total, &MetricsSnapshot::not_finite_total},
    {&LaneStats::slo_met_total, &MetricsSnapshot::promises_kept_total},
    {&LaneStats::slo_missed_total, &MetricsSnapshot::promises_broken_total},
    {&LaneStats::drafted_tokens_total, &MetricsSnapshot::drafted_tokens_total},
    {&LaneStats::drafted_accepted_total, &MetricsSnapshot::drafted_accepted_total},
    {&LaneStats::hot_hits_total, &MetricsSnapshot::hot_hits_total},
    {&LaneStats::warm_hits_total, &MetricsSnapshot::warm_hits_total},
    {&LaneStats::cold_hits_total, &MetricsSnapshot::cold_hits_total},
    {&LaneStats::shared_hits_total, &MetricsSnapshot::shared_hits_total},
    {&LaneStats::saved_bytes_total, &MetricsSnapshot::saved_bytes_total},
    {&LaneStats::restored_bytes_total, &MetricsSnapshot::restored_bytes_total},
};
constexpr GaugeSum<LaneStats> kLaneGauges[] = {
    {&LaneStats::sequences_active, &MetricsSnapshot::sequences_active},
    {&LaneStats::queue_depth, &MetricsSnapshot::queue_depth},
    {&LaneStats::threads, &MetricsSnapshot::threads},
    {&LaneStats::hot_sessions, &MetricsSnapshot::hot_sessions},
    {&LaneStats::swapped_sequences, &MetricsSnapshot::warm_sessions},
    {&LaneStats::swapped_bytes, &MetricsSnapshot::warm_bytes},
};
constexpr CounterSum<EmbedStats> kEmbedCounters[] = {
    {&EmbedStats::requests_failed_total, &MetricsSnapshot::requests_failed_total},
    {&EmbedStats::requests_cancelled_total, &MetricsSnapshot::requests_cancelled_total},
    {&EmbedStats::texts_total, &MetricsSnapshot::embed_texts_total},
    {&EmbedStats::tokens_total, &MetricsSnapshot::embed_tokens_total},
    {&EmbedStats::calls_total, &MetricsSnapshot::embed_calls_total},
};
constexpr CounterSum<PictureStats> kPictureCounters[] = {
    {&PictureStats::requests_failed_total, &MetricsSnapshot::requests_failed_total},
    {&PictureStats::requests_cancelled_total, &MetricsSnapshot::requests_cancelled_total},
    {&PictureStats::pictures_total, &MetricsSnapshot::pictures_total},
    {&PictureStats::steps_total, &MetricsSnapshot::picture_steps_total},
    {&PictureStats::calls_total, &MetricsSnapshot::picture_calls_total},
};
constexpr CounterSum<image::ImageEncoderStats> kVisionCounters[] = {
    {&image::ImageEncoderStats::images_encoded_total, &MetricsSnapshot::images_encoded_total},
    {&image::ImageEncoderStats::cache_hits_total, &MetricsSnapshot::image_cache_hits_total},
};
constexpr CounterSum<kv::StoreStats> kStoreCounters[] = {
    {&kv::StoreStats::dropped_total, &MetricsSnapshot::states_dropped_total},
    {&kv::StoreStats::expired_total, &MetricsSnapshot::states_expired_total},
    {&kv::StoreStats::failed_total, &MetricsSnapshot::states_failed_total},
    {&kv::StoreStats::written_bytes_total, &MetricsSnapshot::cold_written_bytes_total},
    {&kv::StoreStats::read_bytes_total, &MetricsSnapshot::cold_read_bytes_total},
    {&kv::StoreStats::prefix_lookups_total, &MetricsSnapshot::shared_prefix_lookups_total},
    {&kv::StoreStats::prefixes_found_total, &MetricsSnapshot::shared_prefixes_found_total},
    {&kv::StoreStats::prefixes_written_total, &MetricsSnapshot::shared_prefixes_written_total},
};
constexpr CounterSum<kv::SharedStats> kSharedCounters[] = {
    {&kv::SharedStats::lookups_total, &MetricsSnapshot::shared_lookups_total},
    {&kv::SharedStats::found_total, &MetricsSnapshot::shared_found_total},
    {&kv::SharedStats::reads_total, &MetricsSnapshot::shared_reads_total},
    {&kv::SharedStats::read_bytes_total, &MetricsSnapshot::shared_read_bytes_total},
    {&kv::SharedStats::writes_total, &MetricsSnapshot::shared_writes_total},
    {&kv::SharedStats::written_bytes_total, &MetricsSnapshot::shared_written_bytes_total},
    {&kv::SharedStats::failed_total, &MetricsSnapshot::shared_failed_total},
    {&kv::SharedStats::refused_total, &MetricsSnapshot::shared_refused_total},
};
constexpr GaugeSum<kv::StoreStats> kStoreGauges[] = {
    {&kv::StoreStats::warm_states, &MetricsSnapshot::warm_sessions},
    {&kv::StoreStats::warm_bytes, &MetricsSnapshot::warm_bytes},
    {&kv::StoreStats::cold_states, &MetricsSnapshot::cold_sessions},
    {&kv::StoreStats::cold_bytes, &MetricsSnapshot::cold_bytes},
    {&kv::StoreStats::written_day_bytes, &MetricsSnapshot::cold_written_day_bytes},
};

void add_sums(MetricsSnapshot& snapshot, const auto& stats, const auto& sums) {
  for (const auto& sum : sums) snapshot.*sum.to += (stats.*sum.from).value();
}

double quotient(double sum, double count) {
  return count == 0 ? 0 : sum / count;
}

// The earlier of two times; 0 stands for none.
std::int64_t earlier_us(std::int64_t left, std::int64_t right) {
  if (left == 0 || right == 0) return std::max(left, right);
  return std::min(left, right);
}

std::optional<double> seconds_between(std::int64_t then_us, std::int64_t now_us) {
  if (then_us == 0) return std::nullopt;
  return std::max(0.0, static_cast<double>(now_us - then_us) / 1e6);
}

}  // namespace

void MergedHistogram::add(const LatencyHistogram& histogram) {
  histogram.add_to(counts_);
  sum_ms_ += histogram.sum_ms();
  count_ += histogram.count();
}

double MergedHistogram::mean_ms() const {
  return quotient(sum_ms_, static_cast<double>(count_));
}

HistogramSnapshot MergedHistogram::snapshot() const {
  constexpr std::size_t kStep = LatencyHistogram::kPerDoubling;
  constexpr std::size_t kFirst = 7 * kStep;  // The buckets below 128 µs.
  HistogramSnapshot few;
  few.sum_s = sum_ms_ / 1000;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    if (i >= kFirst && (i - kFirst) % kStep == 0 && (i - kFirst) / kStep < few.at_most.size()) {
      few.at_most[(i - kFirst) / kStep] = few.count;
    }
    few.count += counts_[i];
  }
  return few;
}

void MetricsCollector::add(const std::string& model, const LaneStats& stats, const llm::ContextShape& shape) {
  add_sums(snapshot_, stats, kLaneCounters);
  add_sums(snapshot_, stats, kLaneGauges);
  snapshot_.hot_bytes += stats.cells_used.value() * static_cast<std::int64_t>(shape.kv_bytes_per_token);
  last_call_us_ = std::max(last_call_us_, stats.last_call_us.value());
  last_decode_us_ = std::max(last_decode_us_, stats.last_decode_us.value());
  waiting_since_us_ = earlier_us(waiting_since_us_, stats.waiting_since_us.value());
  totals_.decode_ticks += stats.decode_ticks_total.value();
  totals_.decode_rows += stats.decode_rows_total.value();
  totals_.logits_rows += stats.logits_rows_total.value();
  totals_.logits_copied += stats.logits_copied_total.value();
  totals_.cells_used += stats.cells_used.value();
  totals_.cells += shape.cells;
  totals_.bytes_moved += static_cast<double>(stats.bytes_moved_total.value());
  totals_.bytes_moved_per_token = std::max(totals_.bytes_moved_per_token, stats.bytes_moved_per_token.load());
  totals_.calls_s += static_cast<double>(stats.calls_us_total.value()) / 1e6;
  add_histograms(stats);
  snapshot_.workers.push_back({.model = model,
                               .sequences_active = stats.sequences_active.value(),
                               .queue_depth = stats.queue_depth.value(),
                               .cells_used = stats.cells_used.value(),
                               .cells_total = shape.cells,
                               .tokens_total = stats.tokens_total.value(),
                               .batch_calls_total = stats.batch_calls_total.value()});
}

void MetricsCollector::add_histograms(const LaneStats& stats) {
  handover_.add(stats.handover);
  inter_token_.add(stats.inter_token);
  ttft_.add(stats.ttft);
  queue_wait_.add(stats.queue_wait);
  decode_call_.add(stats.decode_call);
  prefill_call_.add(stats.prefill_call);
  sampling_.add(stats.sampling);
  warm_restore_.add(stats.warm_restore);
  cold_restore_.add(stats.cold_restore);
  restore_.add(stats.warm_restore);
  restore_.add(stats.cold_restore);
  shared_restore_.add(stats.shared_restore);
  restore_.add(stats.shared_restore);
  save_.add(stats.save);
}

void MetricsCollector::add(const EmbedStats& stats) {
  add_sums(snapshot_, stats, kEmbedCounters);
  snapshot_.embed_queue_depth += stats.queue_depth.value();
  last_call_us_ = std::max(last_call_us_, stats.last_call_us.value());
  waiting_since_us_ = earlier_us(waiting_since_us_, stats.waiting_since_us.value());
  embed_call_.add(stats.call);
  embed_request_.add(stats.request);
}

void MetricsCollector::add(const PictureStats& stats) {
  add_sums(snapshot_, stats, kPictureCounters);
  snapshot_.picture_queue_depth += stats.queue_depth.value();
  last_call_us_ = std::max(last_call_us_, stats.last_call_us.value());
  waiting_since_us_ = earlier_us(waiting_since_us_, stats.waiting_since_us.value());
  picture_call_.add(stats.call);
  picture_request_.add(stats.request);
}

void MetricsCollector::add(const image::ImageEncoderStats& stats) {
  add_sums(snapshot_, stats, kVisionCounters);
  snapshot_.image_cache_bytes += stats.cache_bytes.value();
  image_encode_.add(stats.encode);
  last_call_us_ = std::max(last_call_us_, stats.last_step_us.value());
}

void MetricsCollector::add(const kv::StoreStats& stats) {
  add_sums(snapshot_, stats, kStoreCounters);
  add_sums(snapshot_, stats, kStoreGauges);
  snapshot_.cold_read_ms_avg = quotient(stats.read.sum_ms(), static_cast<double>(stats.read.count()));
  snapshot_.cold_write_ms_avg = quotient(stats.write.sum_ms(), static_cast<double>(stats.write.count()));
}

void MetricsCollector::add(const kv::SharedStats& stats) {
  add_sums(snapshot_, stats, kSharedCounters);
}

MetricsSnapshot MetricsCollector::finish(TimePoint now) {
  finish_ratios();
  finish_times();
  snapshot_.progress = {.last_tick_s = seconds_between(last_call_us_, to_us(now)),
                        .last_decode_s = seconds_between(last_decode_us_, to_us(now)),
                        .oldest_waiting_s = seconds_between(waiting_since_us_, to_us(now))};
  snapshot_.ttft = ttft_.snapshot();
  snapshot_.inter_token = inter_token_.snapshot();
  snapshot_.queue_wait = queue_wait_.snapshot();
  snapshot_.decode_call = decode_call_.snapshot();
  snapshot_.prefill_call = prefill_call_.snapshot();
  snapshot_.embed_call = embed_call_.snapshot();
  snapshot_.embed_request = embed_request_.snapshot();
  snapshot_.picture_call = picture_call_.snapshot();
  snapshot_.picture_request = picture_request_.snapshot();
  snapshot_.warm_restore = warm_restore_.snapshot();
  snapshot_.cold_restore = cold_restore_.snapshot();
  snapshot_.shared_restore = shared_restore_.snapshot();
  return std::move(snapshot_);
}

void MetricsCollector::finish_ratios() {
  const auto number = [](auto value) { return static_cast<double>(value); };
  snapshot_.avg_batch = quotient(number(totals_.decode_rows), number(totals_.decode_ticks));
  snapshot_.embed_texts_per_call = quotient(number(snapshot_.embed_texts_total), number(snapshot_.embed_calls_total));
  snapshot_.bmt_mb_per_token = totals_.bytes_moved_per_token / 1e6;
  snapshot_.bmt_gbps = totals_.calls_s > 0 ? totals_.bytes_moved / totals_.calls_s / 1e9 : 0;
  snapshot_.copy_free_ratio = 1 - quotient(number(totals_.logits_copied), number(totals_.logits_rows));
  snapshot_.kv_cache_utilization = quotient(number(totals_.cells_used), number(totals_.cells));
}

void MetricsCollector::finish_times() {
  snapshot_.p50_ms = inter_token_.percentile_ms(0.50);
  snapshot_.p95_ms = inter_token_.percentile_ms(0.95);
  snapshot_.p99_ms = inter_token_.percentile_ms(0.99);
  snapshot_.per_token_latency_ms = inter_token_.mean_ms();
  snapshot_.ttft_p50_ms = ttft_.percentile_ms(0.50);
  snapshot_.ttft_p95_ms = ttft_.percentile_ms(0.95);
  snapshot_.decode_ms_avg = decode_call_.mean_ms();
  snapshot_.prefill_ms_avg = prefill_call_.mean_ms();
  snapshot_.sample_ms_avg = sampling_.mean_ms();
  snapshot_.queue_wait_ms_avg = queue_wait_.mean_ms();
  snapshot_.handovers_total = handover_.count();
  snapshot_.handover_ms_avg = handover_.mean_ms();
  snapshot_.restore_ms_avg = restore_.mean_ms();
  snapshot_.warm_restore_ms_avg = warm_restore_.mean_ms();
  snapshot_.cold_restore_ms_avg = cold_restore_.mean_ms();
  snapshot_.shared_restore_ms_avg = shared_restore_.mean_ms();
  snapshot_.save_ms_avg = save_.mean_ms();
  snapshot_.image_encode_ms_avg = image_encode_.mean_ms();
  snapshot_.embed_call_ms_avg = embed_call_.mean_ms();
  snapshot_.picture_call_ms_avg = picture_call_.mean_ms();
  snapshot_.picture_request_p50_ms = picture_request_.percentile_ms(0.50);
  snapshot_.picture_request_p95_ms = picture_request_.percentile_ms(0.95);
  snapshot_.embed_request_p50_ms = embed_request_.percentile_ms(0.50);
  snapshot_.embed_request_p95_ms = embed_request_.percentile_ms(0.95);
}

}  // namespace uma::engine
