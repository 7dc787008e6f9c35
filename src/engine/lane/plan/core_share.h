// Divides the machine's cores among workers, and a worker's compute threads among its two lanes. While both lanes work, each
// has a part of the threads; while one idles, the other has all. A call keeps its threads to its end. If the calls of both
// lanes would use more threads than there are, as when a stream begins beside a prompt that has all threads, the lanes take
// turns: the decode lane closes the gate that the prefill lane's computation passes between its steps. Any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/gate.h"

namespace uma::engine {

// The number of workers of the daemon that compute, over all models. Any thread.
class BusyWorkers {
 public:
  // `threads`: the threads of all workers together.
  explicit BusyWorkers(std::int32_t threads) : threads_(threads) {}

  // A worker begins to compute (1) or has ended (-1).
  void add(std::int32_t change) { count_.fetch_add(change); }
  [[nodiscard]] std::int32_t count() const { return count_.load(); }
  // The number of a worker's `wanted` threads that it may use now: an equal part of all threads, if that is less, and at least
  // one.
  [[nodiscard]] std::int32_t part_of(std::int32_t wanted) const {
    return std::clamp(threads_ / std::max(1, count_.load()), 1, wanted);
  }

 private:
  const std::int32_t threads_;
  std::atomic<std::int32_t> count_{0};
};

class CoreShare {
 public:
  // The decode lane keeps `beside_prefill` of the `threads` while prompts are computed; 0: the lanes always take turns, each
  // with all threads. `workers` is shared by all workers of the daemon; null: there is no other worker.
  CoreShare(std::int32_t threads, std::int32_t beside_prefill, std::shared_ptr<BusyWorkers> workers = nullptr)
      : beside_wanted_(beside_prefill), workers_(std::move(workers)), threads_(threads) {}
  ~CoreShare() { add_busy(-busy_parts_.load()); }
  CoreShare(const CoreShare&) = delete;
  CoreShare& operator=(const CoreShare&) = delete;

  // Decode lane's thread. The next calls share `threads` >= 1.
  void set_threads(std::int32_t threads) { threads_.store(threads); }

  [[nodiscard]] Gate& gate() { return gate_; }

  void prefill_job_sent() {
    prefill_jobs_.fetch_add(1);
    add_busy(1);
  }
  void prefill_job_ended() {
    prefill_jobs_.fetch_sub(1);
    add_busy(-1);
  }
  [[nodiscard]] bool prefill_is_busy() const { return prefill_jobs_.load() > 0; }
  // A call of the prefill lane with so many threads begins, or has ended (0).
  void set_prefill_call(std::int32_t threads) { prefill_call_threads_.store(threads); }
  void set_decode_busy(bool busy) {
    if (decode_busy_.exchange(busy) != busy) add_busy(busy ? 1 : -1);
  }
  [[nodiscard]] bool decode_is_busy() const { return decode_busy_.load() || handovers_.load() > 0; }
  // A finished prompt is being handed over. The decode lane counts as busy until it has taken the prompt, because it will
  // compute soon.
  void handover_sent() { handovers_.fetch_add(1); }
  void handover_taken() { handovers_.fetch_sub(1); }

  // Whether another worker computes.
  [[nodiscard]] bool others_compute() const {
    return workers_ != nullptr && workers_->count() > (busy_parts_.load() > 0 ? 1 : 0);
  }
  // Whether a call of the prefill lane that begins now leaves cores for the decode lane.
  [[nodiscard]] bool is_split() const { return beside_prefill(fair_threads()) > 0; }
  // Whether the decode lane must close the gate around its calls.
  [[nodiscard]] bool takes_turns() const {
    const std::int32_t threads = fair_threads();
    const std::int32_t beside = beside_prefill(threads);
    return prefill_is_busy() && (beside == 0 || prefill_call_threads_.load() + beside > threads);
  }
  [[nodiscard]] std::int32_t decode_threads() const {
    const std::int32_t threads = fair_threads();
    const std::int32_t beside = beside_prefill(threads);
    return beside > 0 && prefill_is_busy() ? beside : threads;
  }
  [[nodiscard]] std::int32_t prefill_threads() const {
    const std::int32_t threads = fair_threads();
    const std::int32_t beside = beside_prefill(threads);
    return beside > 0 && decode_is_busy() ? std::max(1, threads - beside) : threads;
  }

 private:
  // An equal part of the threads while other workers compute.
  [[nodiscard]] std::int32_t fair_threads() const {
    return workers_ == nullptr ? threads_.load() : workers_->part_of(threads_.load());
  }
  [[nodiscard]] std::int32_t beside_prefill(std::int32_t threads) const { return std::clamp(beside_wanted_, 0, threads - 1); }
  // Adds to the number of busy lanes and jobs of this worker.
  void add_busy(std::int32_t change) {
    const std::int32_t before = busy_parts_.fetch_add(change);
    if (workers_ == nullptr || (before > 0) == (before + change > 0)) return;
    workers_->add(before > 0 ? -1 : 1);
  }

  const std::int32_t beside_wanted_;
  const std::shared_ptr<BusyWorkers> workers_;
  std::atomic<std::int32_t> busy_parts_{0};
  std::atomic<std::int32_t> threads_;
  Gate gate_;
  std::atomic<std::int32_t> prefill_jobs_{0};
  std::atomic<std::int32_t> prefill_call_threads_{0};
  std::atomic<bool> decode_busy_{false};
  std::atomic<std::int32_t> handovers_{0};
};

}  // namespace uma::engine
