// The daemon's metrics at one moment. core/metrics_table.h has the name and meaning of each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/cache_miss.h"

namespace uma {

// A histogram with few buckets: the number of values up to each bound.
struct HistogramSnapshot {
  static constexpr std::size_t kBounds = 21;
  // The bounds double from 128 µs to 134 s.
  static constexpr double bound_s(std::size_t index) { return 1e-6 * static_cast<double>(std::uint64_t{128} << index); }

  std::array<std::uint64_t, kBounds> at_most{};
  std::uint64_t count = 0;
  double sum_s = 0;
};

// The progress of the daemon's work. Times are seconds before now.
struct ProgressSnapshot {
  std::optional<double> last_tick_s;       // End of the last library call; nullopt: there was none.
  std::optional<double> last_decode_s;     // End of the last call with decode rows.
  std::optional<double> oldest_waiting_s;  // Receipt of the oldest request without computed tokens; nullopt: there is none.
};

struct WorkerMetrics {
  std::string model;
  std::int64_t sequences_active = 0;
  std::int64_t queue_depth = 0;
  std::int64_t cells_used = 0;
  std::int64_t cells_total = 0;
  std::uint64_t tokens_total = 0;
  std::uint64_t batch_calls_total = 0;
};

// A device that models use. One without memory of its own has none here.
struct DeviceMetrics {
  std::string name;
  std::int64_t memory_usable_bytes = 0;
  std::int64_t memory_reserved_bytes = 0;
  std::int64_t weights_bytes = 0;
  std::int64_t context_bytes = 0;
  double busy_s_total = 0;
  double busy_ratio = 0;
};

// Crashes of the daemon's processes, counted by their supervisor; without one there are none.
struct CrashRecord {
  std::uint64_t count = 0;
  std::string last_cause;  // "signal 11" or "status 99"; empty: there was none.
  std::int64_t last_unix_s = 0;
};

struct MetricsSnapshot {
  std::string model;
  double uptime_s = 0;
  std::int64_t catalog_reachable = 1;  // 0: no.
  std::int64_t sessions = 0;
  std::int64_t session_bytes = 0;
  std::int64_t requests_open = 0;
  std::uint64_t request_bytes = 0;
  std::uint64_t kept_image_bytes = 0;
  std::uint64_t exceptions_total = 0;
  std::int64_t prompt_memory_bytes = 0;
  std::array<std::uint64_t, kCacheMissKinds.size()> cache_misses{};  // By kCacheMissKinds.
  std::uint64_t requests_total = 0;
  std::uint64_t requests_failed_total = 0;
  std::uint64_t requests_cancelled_total = 0;
  std::uint64_t tokens_total = 0;
  std::uint64_t prompt_tokens_total = 0;
  std::uint64_t reused_tokens_total = 0;
  double avg_batch = 0;
  double p50_ms = 0;
  double p95_ms = 0;
  double p99_ms = 0;
  double ttft_p50_ms = 0;
  double ttft_p95_ms = 0;
  double per_token_latency_ms = 0;
  double decode_ms_avg = 0;
  double prefill_ms_avg = 0;
  double sample_ms_avg = 0;
  double queue_wait_ms_avg = 0;
  double restore_ms_avg = 0;
  std::uint64_t batch_calls_total = 0;
  std::uint64_t ticks_total = 0;
  std::int64_t sequences_active = 0;
  std::int64_t queue_depth = 0;
  std::uint64_t preemptions_total = 0;
  std::uint64_t moved_cells_total = 0;
  std::uint64_t idle_stored_total = 0;
  std::uint64_t context_shifts_total = 0;
  std::uint64_t adapter_requests_total = 0;
  std::uint64_t adapter_changes_total = 0;
  std::uint64_t reuses_verified_total = 0;
  std::uint64_t reuses_wrong_total = 0;
  std::uint64_t not_finite_total = 0;
  std::uint64_t promises_kept_total = 0;
  std::uint64_t promises_broken_total = 0;
  std::uint64_t drafted_tokens_total = 0;
  std::uint64_t drafted_accepted_total = 0;
  std::int64_t threads = 0;
  std::uint64_t handovers_total = 0;
  double handover_ms_avg = 0;
  double bmt_gbps = 0;
  double bmt_mb_per_token = 0;
  double copy_free_ratio = 0;
  std::optional<double> device_busy_ratio{};
  std::int64_t hot_sessions = 0;
  std::int64_t hot_bytes = 0;
  std::uint64_t hot_hits_total = 0;
  std::int64_t warm_sessions = 0;
  std::int64_t warm_bytes = 0;
  std::uint64_t warm_hits_total = 0;
  double warm_restore_ms_avg = 0;
  std::int64_t cold_sessions = 0;
  std::int64_t cold_bytes = 0;
  std::uint64_t cold_hits_total = 0;
  double cold_restore_ms_avg = 0;
  std::uint64_t shared_hits_total = 0;
  double shared_restore_ms_avg = 0;
  std::uint64_t shared_lookups_total = 0;
  std::uint64_t shared_found_total = 0;
  std::uint64_t shared_reads_total = 0;
  std::uint64_t shared_read_bytes_total = 0;
  std::uint64_t shared_writes_total = 0;
  std::uint64_t shared_written_bytes_total = 0;
  std::uint64_t shared_failed_total = 0;
  std::uint64_t shared_refused_total = 0;
  std::uint64_t shared_prefix_lookups_total = 0;
  std::uint64_t shared_prefixes_found_total = 0;
  std::uint64_t shared_prefixes_written_total = 0;
  std::uint64_t states_dropped_total = 0;
  std::uint64_t states_expired_total = 0;
  std::uint64_t states_failed_total = 0;
  double save_ms_avg = 0;
  double cold_read_ms_avg = 0;
  double cold_write_ms_avg = 0;
  std::uint64_t saved_bytes_total = 0;
  std::uint64_t cold_written_bytes_total = 0;
  std::int64_t cold_written_day_bytes = 0;
  std::uint64_t cold_read_bytes_total = 0;
  std::uint64_t restored_bytes_total = 0;
  std::uint64_t images_encoded_total = 0;
  std::uint64_t image_cache_hits_total = 0;
  std::int64_t image_cache_bytes = 0;
  double image_encode_ms_avg = 0;
  std::int64_t embed_queue_depth = 0;
  std::uint64_t embed_texts_total = 0;
  std::uint64_t embed_tokens_total = 0;
  std::uint64_t embed_calls_total = 0;
  double embed_texts_per_call = 0;
  double embed_call_ms_avg = 0;
  double embed_request_p50_ms = 0;
  double embed_request_p95_ms = 0;
  std::int64_t picture_queue_depth = 0;
  std::uint64_t pictures_total = 0;
  std::uint64_t picture_steps_total = 0;
  std::uint64_t picture_calls_total = 0;
  double picture_call_ms_avg = 0;
  double picture_request_p50_ms = 0;
  double picture_request_p95_ms = 0;
  std::int64_t rss_bytes = 0;
  double kv_cache_utilization = 0;
  std::int64_t models_registered = 0;
  std::int64_t models_loaded = 0;
  std::uint64_t model_loads_total = 0;
  std::uint64_t model_unloads_total = 0;
  std::int64_t memory_usable_bytes = 0;
  std::int64_t memory_reserved_bytes = 0;
  std::uint64_t memory_decisions_total = 0;
  std::vector<std::string> memory_decisions;
  CrashRecord crashes;
  ProgressSnapshot progress;
  std::vector<WorkerMetrics> workers;
  std::vector<DeviceMetrics> devices;
  HistogramSnapshot ttft;
  HistogramSnapshot inter_token;
  HistogramSnapshot queue_wait;
  HistogramSnapshot decode_call;
  HistogramSnapshot prefill_call;
  HistogramSnapshot embed_call;
  HistogramSnapshot embed_request;
  HistogramSnapshot picture_call;
  HistogramSnapshot picture_request;
  HistogramSnapshot warm_restore;
  HistogramSnapshot cold_restore;
  HistogramSnapshot shared_restore;
};

}  // namespace uma
