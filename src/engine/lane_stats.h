// A lane's numbers: written by its thread (queue_depth also by the router), read by any. docs/METRICS.md says what they mean.
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
  Counter decode_ticks_total;  // ticks with at least one decoding sequence
  Counter decode_rows_total;   // tokens of those ticks
  Counter batch_calls_total;
  Counter preemptions_total;
  Counter context_shifts_total;
  Counter drafted_tokens_total;    // guesses that were computed
  Counter drafted_accepted_total;  // and were right
  Counter logits_rows_total;       // that tokens were chosen from
  Counter logits_copied_total;  // of them, those that came with a prompt from the prefill lane; the others stay where they are
  Counter reuses_verified_total;  // by scheduler.verify
  Counter reuses_wrong_total;     // of them, those that gave other logits than their tokens
  Counter not_finite_total;       // replies that were computed anew, or ended, because their logits were not finite
  Counter promises_kept_total;
  Counter promises_broken_total;
  Counter hot_hits_total;
  Counter warm_hits_total;
  Counter cold_hits_total;
  Gauge sequences_active;  // in the context: prefilling or decoding
  Gauge queue_depth;       // sent to the lane and not yet in the context
  Gauge threads;           // that compute, of the worker's: fewer while other processes take the cores
  Gauge hot_sessions;
  Gauge cells_used;
  Gauge swapped_sequences;  // waiting with their state beside them
  Gauge swapped_bytes;
  Gauge last_call_us;      // when a library call of the worker's lanes last ended, by the engine's clock; 0: never
  Gauge last_decode_us;    // the same of calls with decode rows
  Gauge waiting_since_us;  // receipt of the first in line, of which nothing is computed yet; 0: nobody waits
  LatencyHistogram inter_token;
  LatencyHistogram ttft;
  LatencyHistogram queue_wait;
  LatencyHistogram decode_call;
  LatencyHistogram prefill_call;
  LatencyHistogram sampling;
  LatencyHistogram warm_restore;                 // of states that were in memory: loading them
  LatencyHistogram cold_restore;                 // of states that were on disk: reading and loading them
  LatencyHistogram save;                         // of states that left the context
  LatencyHistogram handover;                     // of finished prompts into the decode lane's context
  std::atomic<double> bytes_moved_per_token{0};  // of the last decode call, estimated
  Counter bytes_moved_total;                     // by all calls, estimated
  Counter calls_us_total;                        // that those calls took

  void note_call_ended(TimePoint ended, bool has_decode_rows) {
    last_call_us.set(to_us(ended));
    if (has_decode_rows) last_decode_us.set(to_us(ended));
  }
  void note_bytes_moved(double bytes, double ms) {
    bytes_moved_total.add(static_cast<std::uint64_t>(bytes));
    calls_us_total.add(static_cast<std::uint64_t>(ms * 1000));
  }
};

}  // namespace uma::engine
