// How the two lanes of a worker share its compute threads. While both work each has its part of them, and all while the other
// idles. A call keeps the threads it began with: where those of both would be more than there are, as when a stream begins
// beside a prompt that had all of them, the lanes take turns. The decode lane then closes the gate that the prefill lane's
// computation passes between its steps. Any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/gate.h"

namespace uma::engine {

class CoreShare {
 public:
  // `beside_prefill` of the `threads` stay with the decode lane while prompts are computed; 0: the lanes always take turns,
  // each with all threads.
  CoreShare(std::int32_t threads, std::int32_t beside_prefill)
      : threads_(threads), beside_prefill_(std::clamp(beside_prefill, 0, threads - 1)) {}

  [[nodiscard]] Gate& gate() { return gate_; }

  void prefill_job_sent() { prefill_jobs_.fetch_add(1); }
  void prefill_job_ended() { prefill_jobs_.fetch_sub(1); }
  [[nodiscard]] bool prefill_is_busy() const { return prefill_jobs_.load() > 0; }
  // A call of the prefill lane with this many threads begins, or, with 0, has ended.
  void set_prefill_call(std::int32_t threads) { prefill_call_threads_.store(threads); }
  void set_decode_busy(bool busy) { decode_busy_.store(busy); }
  [[nodiscard]] bool decode_is_busy() const { return decode_busy_.load() || handovers_.load() > 0; }
  // A finished prompt is on its way to the decode lane, which is about to work: until it was taken the lane counts as busy.
  void handover_sent() { handovers_.fetch_add(1); }
  void handover_taken() { handovers_.fetch_sub(1); }

  // Whether the decode lane must close the gate around its calls.
  [[nodiscard]] bool takes_turns() const {
    return prefill_is_busy() && (beside_prefill_ == 0 || prefill_call_threads_.load() + beside_prefill_ > threads_);
  }
  [[nodiscard]] std::int32_t decode_threads() const {
    return beside_prefill_ > 0 && prefill_is_busy() ? beside_prefill_ : threads_;
  }
  [[nodiscard]] std::int32_t prefill_threads() const {
    return beside_prefill_ > 0 && decode_is_busy() ? threads_ - beside_prefill_ : threads_;
  }

 private:
  const std::int32_t threads_;
  const std::int32_t beside_prefill_;
  Gate gate_;
  std::atomic<std::int32_t> prefill_jobs_{0};
  std::atomic<std::int32_t> prefill_call_threads_{0};
  std::atomic<bool> decode_busy_{false};
  std::atomic<std::int32_t> handovers_{0};
};

}  // namespace uma::engine
