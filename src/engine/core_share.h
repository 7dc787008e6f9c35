// Which lane of a worker computes with how many threads: both while one of them idles, a part each while both work. Any thread;
// a lane asks before each call, so cores move within one call.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace uma::engine {

class CoreShare {
 public:
  // `threads` in all, of which the decode lane keeps `beside_prefill` while prompts are computed; 0: half of them.
  CoreShare(std::int32_t threads, std::int32_t beside_prefill)
      : threads_(threads), beside_prefill_(std::clamp(beside_prefill > 0 ? beside_prefill : threads / 2, 1, std::max(1, threads - 1))) {}

  void set_decode_busy(bool busy) { decode_busy_.store(busy); }
  void set_prefill_busy(bool busy) { prefill_busy_.store(busy); }
  // A finished prompt is on its way to the decode lane, which is about to work: until it was taken the lane counts as busy.
  void handover_sent() { handovers_.fetch_add(1); }
  void handover_taken() { handovers_.fetch_sub(1); }

  [[nodiscard]] std::int32_t decode_threads() const { return prefill_busy_.load() ? beside_prefill_ : threads_; }
  [[nodiscard]] std::int32_t prefill_threads() const {
    return decode_busy_.load() || handovers_.load() > 0 ? std::max(1, threads_ - beside_prefill_) : threads_;
  }

 private:
  const std::int32_t threads_;
  const std::int32_t beside_prefill_;
  std::atomic<bool> decode_busy_{false};
  std::atomic<bool> prefill_busy_{false};
  std::atomic<std::int32_t> handovers_{0};
};

}  // namespace uma::engine
