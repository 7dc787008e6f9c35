// The daemon's numbers at one moment. docs/METRICS.md says what each means; the wire room prints them as JSON.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace uma {

// A histogram with few buckets: how many values are at most each bound.
struct HistogramSnapshot {
  static constexpr std::size_t kBounds = 21;
  // 128 µs, and twice as much each: up to 134 s.
  static constexpr double bound_s(std::size_t index) { return 1e-6 * static_cast<double>(std::uint64_t{128} << index); }

  std::array<std::uint64_t, kBounds> at_most{};
  std::uint64_t count = 0;
  double sum_s = 0;
};

// Whether work gets done. Times are in the past, in seconds.
struct ProgressSnapshot {
  std::optional<double> last_tick_s;    // a library call ended; nothing: there was none
  std::optional<double> last_decode_s;  // one with decode rows
  std::optional<double>
      oldest_waiting_s;  // receipt of the oldest request of which nothing is computed yet; nothing: there is none
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

// Ends of the daemon's processes that nobody asked for, as their supervisor counts them. Without one there are none.
struct CrashRecord {
  std::uint64_t count = 0;
  std::string last_cause;  // "signal 11" or "status 99"; empty: there was none
  std::int64_t last_unix_s = 0;
};

struct MetricsSnapshot {
  std::string model;
  double uptime_s = 0;
  std::int64_t sessions = 0;
  std::int64_t requests_open = 0;      // received and not ended
  std::uint64_t request_bytes = 0;     // that requests hold (limits.queue_bytes_max)
  std::uint64_t kept_image_bytes = 0;  // files of sessions' images (vision.kept_bytes_max)
  std::uint64_t exceptions_total = 0;  // that nobody expected (base/thrown.h)
  std::uint64_t requests_total = 0;
  std::uint64_t requests_failed_total = 0;
  std::uint64_t requests_cancelled_total = 0;
  std::uint64_t tokens_total = 0;         // generated
  std::uint64_t prompt_tokens_total = 0;  // computed, reused ones not counted
  std::uint64_t reused_tokens_total = 0;
  double avg_batch = 0;  // decoding sequences per tick, over the ticks with at least one
  double p50_ms = 0;     // time between tokens of a stream
  double p95_ms = 0;
  double p99_ms = 0;
  double ttft_p50_ms = 0;
  double ttft_p95_ms = 0;
  double per_token_latency_ms = 0;  // mean time between tokens
  double decode_ms_avg = 0;         // one library call with decode rows
  double prefill_ms_avg = 0;        // one library call with a prefill chunk
  double sample_ms_avg = 0;         // choosing the tokens of one tick
  double queue_wait_ms_avg = 0;
  double restore_ms_avg = 0;
  std::uint64_t batch_calls_total = 0;
  std::uint64_t ticks_total = 0;
  std::int64_t sequences_active = 0;
  std::int64_t queue_depth = 0;
  std::uint64_t preemptions_total = 0;
  std::uint64_t context_shifts_total = 0;   // times that oldest turns were dropped
  std::uint64_t reuses_verified_total = 0;  // by scheduler.verify
  std::uint64_t reuses_wrong_total = 0;
  std::uint64_t not_finite_total = 0;
  std::uint64_t promises_kept_total = 0;  // tokens that came within target_tbt_ms of the one before
  std::uint64_t promises_broken_total = 0;
  std::uint64_t drafted_tokens_total = 0;
  std::uint64_t drafted_accepted_total = 0;
  std::int64_t threads = 0;           // that compute now, of all workers
  std::uint64_t handovers_total = 0;  // of prompts from a prefill lane to the streams' context
  double handover_ms_avg = 0;
  double bmt_gbps = 0;          // 10^9 bytes a second moved in calls, estimated, since the start
  double bmt_mb_per_token = 0;  // bytes moved per token, estimated: weights + KV read, over the tokens of a decode call
  double copy_free_ratio = 0;   // logits rows read in place, over all read
  std::int64_t hot_sessions = 0;
  std::int64_t hot_bytes = 0;
  std::uint64_t hot_hits_total = 0;
  std::int64_t warm_sessions = 0;  // of sessions and prompts, in memory
  std::int64_t warm_bytes = 0;
  std::uint64_t warm_hits_total = 0;
  double warm_restore_ms_avg = 0;
  std::int64_t cold_sessions = 0;  // on disk
  std::int64_t cold_bytes = 0;
  std::uint64_t cold_hits_total = 0;
  double cold_restore_ms_avg = 0;          // reading from disk included
  std::uint64_t states_dropped_total = 0;  // for want of room
  std::uint64_t states_expired_total = 0;  // unused for kv.ttl
  std::uint64_t states_failed_total = 0;   // that could not be written or read
  double save_ms_avg = 0;                  // out of a context
  double cold_read_ms_avg = 0;
  double cold_write_ms_avg = 0;
  std::uint64_t images_encoded_total = 0;
  std::uint64_t image_cache_hits_total = 0;  // images that were needed and still in memory, encoded
  std::int64_t image_cache_bytes = 0;
  double image_encode_ms_avg = 0;
  std::int64_t embed_queue_depth = 0;    // requests for vectors or scores of texts that have not ended
  std::uint64_t embed_texts_total = 0;   // that were computed
  std::uint64_t embed_tokens_total = 0;  // of them
  std::uint64_t embed_calls_total = 0;
  double embed_texts_per_call = 0;
  double embed_call_ms_avg = 0;
  double embed_request_p50_ms = 0;  // from receipt until it was done
  double embed_request_p95_ms = 0;
  std::int64_t rss_bytes = 0;
  double kv_cache_utilization = 0;  // cells in use of all cells
  std::int64_t models_registered = 0;
  std::int64_t models_loaded = 0;  // that serve
  std::uint64_t model_loads_total = 0;
  std::uint64_t model_unloads_total = 0;
  std::int64_t memory_usable_bytes = 0;  // that models, contexts and stored states may take together
  std::int64_t memory_reserved_bytes = 0;
  std::uint64_t memory_decisions_total = 0;   // times that memory was short
  std::vector<std::string> memory_decisions;  // the latest of them, oldest first, in words
  CrashRecord crashes;
  ProgressSnapshot progress;
  std::vector<WorkerMetrics> workers;
  HistogramSnapshot ttft;
  HistogramSnapshot inter_token;
  HistogramSnapshot queue_wait;
  HistogramSnapshot decode_call;
  HistogramSnapshot prefill_call;
  HistogramSnapshot embed_call;
  HistogramSnapshot embed_request;
  HistogramSnapshot warm_restore;
  HistogramSnapshot cold_restore;
};

}  // namespace uma
