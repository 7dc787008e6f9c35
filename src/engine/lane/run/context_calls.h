// The compute calls of a lane's context: their number of threads, their turns with the prefill lane, their cancellation, and
// the memory traffic that they cause. Owned by the lane's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "core/error.h"
#include "core/ids.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/plan/core_share.h"
#include "engine/lane/run/interrupt.h"
#include "llm/adapters.h"
#include "llm/model.h"
#include "sched/bytes_moved.h"
#include "sched/plan_batch.h"
#include "sched/thread_control.h"

namespace uma::engine {

class ContextCalls {
 public:
  ContextCalls(const LaneParts& parts, CoreShare& cores, sched::BandwidthBudget& bandwidth)
      : parts_(parts), cores_(cores), bandwidth_(bandwidth), thread_control_(parts.options.threads) {}

  // --- Any thread.
  // Ends the running call if it computes the request's prompt.
  void cancel(RequestId id);
  void close() { interrupt_.set(true); }

  // --- Owner thread.
  // A step begins. Afterwards the caller looks whether the lane was closed meanwhile, and calls close() again.
  void begin_step() { interrupt_.set(false); }
  // Adapts the number of threads to the load by other processes.
  void watch_load(TimePoint now);
  // Sets the number of threads for the next calls.
  void set_threads(std::int32_t threads);
  void set_decode_threads() { set_threads(cores_.decode_threads()); }
  [[nodiscard]] std::int32_t threads() const { return threads_; }

  // Pauses the prefill lane for its lifetime, if the two lanes take turns and it is not paused already.
  class PrefillPause {
   public:
    explicit PrefillPause(ContextCalls& calls);
    ~PrefillPause();
    PrefillPause(const PrefillPause&) = delete;
    PrefillPause& operator=(const PrefillPause&) = delete;

   private:
    ContextCalls& calls_;
    const bool is_taken_;
  };

  // The beginning and end of a call.
  struct Span {
    TimePoint began{};
    TimePoint ended{};
    [[nodiscard]] double ms() const { return to_ms(ended - began); }
  };
  // Runs `call`, which computes in the context with `adapters`. `of`: the requests whose cancellation ends the call early.
  template <class Call>
  auto run(bool has_decode_rows, const llm::AdapterSet& adapters, std::span<const RequestId> of, Call&& call) {
    set_interruptible(of);
    use_adapters(adapters);
    last_.began = parts_.clock.now();
    auto done = std::forward<Call>(call)(of.empty() ? nullptr : &interrupt_);
    last_.ended = parts_.clock.now();
    set_interruptible({});
    parts_.stats().record_call_ended(last_.ended, has_decode_rows);
    parts_.stats().batch_calls_total.add();
    if (!done && !parts_.context.is_lost() && parts_.slots.notice_losses()) has_lost_tokens_ = true;
    return done;
  }
  // The time of the last call.
  [[nodiscard]] const Span& last() const { return last_; }
  // Counts the bytes that the last call has moved for `rows` rows, which attended to `kv_tokens` cached tokens. Returns the
  // bytes.
  double charge(std::int32_t rows, double kv_tokens);

  // How long the prefill lane may compute before the streams' next tick. `tick_ms` limits how long the streams wait;
  // a tick has `decode_calls` calls for streams.
  [[nodiscard]] double prefill_slice_ms(double tick_ms, std::int32_t decode_calls) const;

  // A failed call has lost tokens of slots, so views of sequences that were made before it are wrong.
  [[nodiscard]] bool take_lost_tokens() { return std::exchange(has_lost_tokens_, false); }
  // Logits were not finite, so the context must be cleared.
  void set_unsound() { is_unsound_ = true; }
  [[nodiscard]] bool take_unsound() { return std::exchange(is_unsound_, false); }

 private:
  void set_interruptible(std::span<const RequestId> of);
  void use_adapters(const llm::AdapterSet& adapters);

  const LaneParts& parts_;
  CoreShare& cores_;
  sched::BandwidthBudget& bandwidth_;
  sched::ThreadControl thread_control_;
  TimePoint load_asked_{};
  std::int32_t threads_ = 0;  // The context's current number of threads; 0: not set yet.
  bool is_pausing_ = false;   // There is a PrefillPause.
  double gate_ms_ = 0;        // The recent maximum of the time until the prefill lane pauses.
  Span last_;
  llm::AdapterSet adapters_;  // Adapters of the last call.
  bool is_unsound_ = false;
  bool has_lost_tokens_ = false;

  // Shared.
  Interrupt interrupt_;
  Mutex mutex_;
  std::vector<RequestId> interruptible_ GUARDED_BY(mutex_);  // The requests whose prompts the running call computes.
};

}  // namespace uma::engine
