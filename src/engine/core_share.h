// How the two lanes of a worker share its compute threads. They take turns, each with all threads: the decode lane closes the gate
// that the prefill lane's computation passes between its steps. Or each has its part of the threads while both work, and all of
// them while the other idles. Any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/gate.h"

namespace uma::engine {

class CoreShare {
 public:
  // `beside_prefill` of the `threads` stay with the decode lane while prompts are computed; 0: the lanes take turns.
  CoreShare(std::int32_t threads, std::int32_t beside_prefill)
      : threads_(threads), beside_prefill_(std::clamp(beside_prefill, 0, threads - 1)) {}

  [[nodiscard]] bool takes_turns() const { return beside_prefill_ == 0; }
  [[nodiscard]] Gate& gate() { return gate_; }

  void prefill_job_sent() { prefill_jobs_.fetch_add(1); }
  void prefill_job_ended() { prefill_jobs_.fetch_sub(1); }
  [[nodiscard]] bool prefill_is_busy() const { return prefill_jobs_.load() > 0; }
  void set_decode_busy(bool busy) { decode_busy_.store(busy); }
  [[nodiscard]] bool decode_is_busy() const { return decode_busy_.load() || handovers_.load() > 0; }
  // A finished prompt is on its way to the decode lane, which is about to work: until it was taken the lane counts as busy.
  void handover_sent() { handovers_.fetch_add(1); }
  void handover_taken() { handovers_.fetch_sub(1); }

  [[nodiscard]] std::int32_t decode_threads() const {
    return !takes_turns() && prefill_is_busy() ? beside_prefill_ : threads_;
  }
  [[nodiscard]] std::int32_t prefill_threads() const {
    return !takes_turns() && decode_is_busy() ? threads_ - beside_prefill_ : threads_;
  }

 private:
  const std::int32_t threads_;
  const std::int32_t beside_prefill_;
  Gate gate_;
  std::atomic<std::int32_t> prefill_jobs_{0};
  std::atomic<bool> decode_busy_{false};
  std::atomic<std::int32_t> handovers_{0};
};

}  // namespace uma::engine
