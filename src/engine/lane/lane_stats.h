// The counters of a lane, written by its thread (queue_depth also by the router) and read by any thread. docs/METRICS.md
// describes them.
#pragma once

#include <atomic>

#include "base/clock.h"
#include "base/metrics.h"

namespace uma::engine {

struct LaneStats {
  Counter tokens_total;
  Counter prompt_tokens_total;
  Counter reused_tokens_total;
  Counter requests_total;
  Counter requests_failed_total;
  Counter requests_cancelled_total;
  Counter ticks_total;
  Counter decode_ticks_total;  // Ticks with at least one decoding sequence.
  Counter decode_rows_total;   // Tokens of these ticks.
  Counter batch_calls_total;
  Counter preemptions_total;
  Counter moved_cells_total;  // Cells that were moved to the place of free ones.
  Counter idle_stored_total;  // Idle slots that were saved piece by piece and freed.
  Counter context_shifts_total;
  Counter adapter_requests_total;  // Requests with adapters.
  Counter adapter_changes_total;   // Calls with other adapters than the call before.
  Counter drafted_tokens_total;    // Verified draft tokens.
  Counter drafted_accepted_total;  // Accepted draft tokens.
  Counter logits_rows_total;       // Rows from which tokens were sampled.
  Counter logits_copied_total;     // Rows that came with a prompt from the prefill lane; other rows are not copied.
  Counter reuses_verified_total;   // Reuses verified by scheduler.verify.
  Counter reuses_wrong_total;      // Verified reuses whose logits differed from those of their tokens.
  Counter not_finite_total;        // Replies that were computed again, or ended, because their logits were not finite.
  Counter slo_met_total;
  Counter slo_missed_total;
  Counter hot_hits_total;
  Counter warm_hits_total;
  Counter cold_hits_total;
  Counter shared_hits_total;
  Counter saved_bytes_total;     // Copied out of the context.
  Counter restored_bytes_total;  // Copied into the context.

  Gauge sequences_active;  // Sequences in the context, prefilling or decoding.
  Gauge queue_depth;       // Sequences sent to the lane and not yet in the context.
  Gauge threads;           // Compute threads in use: fewer while other processes use the cores.
  Gauge hot_sessions;
  Gauge cells_used;
  Gauge swapped_sequences;  // swapped-out sequences that wait with their state.
  Gauge swapped_bytes;
  Gauge last_call_us;      // When a library call of the worker's lanes last ended, by the engine's clock; 0: never.
  Gauge last_decode_us;    // End of the last call with decode rows; 0: never.
  Gauge waiting_since_us;  // When the first waiting request was received; 0: no request waits.
  LatencyHistogram inter_token;
  LatencyHistogram ttft;
  LatencyHistogram queue_wait;
  LatencyHistogram decode_call;
  LatencyHistogram prefill_call;
  LatencyHistogram sampling;
  LatencyHistogram warm_restore;                 // Loading states that were in memory.
  LatencyHistogram cold_restore;                 // Reading and loading states that were on disk.
  LatencyHistogram shared_restore;               // Reading and loading states that another daemon has stored.
  LatencyHistogram save;                         // Saving states that left the context.
  LatencyHistogram handover;                     // Loading finished prompts into the decode lane's context.
  std::atomic<double> bytes_moved_per_token{0};  // Estimate for the last decode call.
  Counter bytes_moved_total;                     // Estimate for all calls.
  Counter calls_us_total;                        // Duration of all calls.

  void record_call_ended(TimePoint ended, bool has_decode_rows) {
    last_call_us.set(to_us(ended));
    if (has_decode_rows) last_decode_us.set(to_us(ended));
  }
  void record_bytes_moved(double bytes, double ms) {
    bytes_moved_total.add(static_cast<std::uint64_t>(bytes));
    calls_us_total.add(static_cast<std::uint64_t>(ms * 1000));
  }
};

}  // namespace uma::engine
