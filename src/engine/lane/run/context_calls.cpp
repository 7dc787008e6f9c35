#include "engine/lane/run/context_calls.h"

#include <algorithm>

#include "base/log.h"
#include "base/trace.h"

namespace uma::engine {
namespace {

constexpr TraceKind kPauseSpan{.name = "wait for the prefill lane"};

}  // namespace

void ContextCalls::cancel(RequestId id) {
  const MutexLock lock(mutex_);
  if (std::ranges::contains(interruptible_, id)) interrupt_.set(true);
}

void ContextCalls::set_interruptible(std::span<const RequestId> of) {
  const MutexLock lock(mutex_);
  interruptible_.assign(of.begin(), of.end());
}

void ContextCalls::use_adapters(const llm::AdapterSet& adapters) {
  if (adapters == adapters_) return;
  parts_.context.use_adapters(adapters);
  adapters_ = adapters;
  parts_.stats().adapter_changes_total.add();
}

void ContextCalls::watch_load(TimePoint now) {
  const LaneOptions& options = parts_.options;
  if (!options.others_busy || now < load_asked_ + from_ms(sched::ThreadControl::kSampleMs)) return;
  // After a pause the average since the last sample does not describe the current load.
  const bool was_paused = now > load_asked_ + from_ms(3 * sched::ThreadControl::kSampleMs);
  load_asked_ = now;
  const auto busy = options.others_busy();
  if (!busy || was_paused) return;
  const std::int32_t before = thread_control_.threads();
  thread_control_.observe(*busy);
  const std::int32_t threads = thread_control_.threads();
  if (threads == before) return;
  cores_.set_threads(threads);
  parts_.stats().threads.set(threads);
  log_info("lane {}: computes with {} of {} threads, because other processes use {:.1f} cores", options.index, threads,
           options.threads, *busy);
}

void ContextCalls::set_threads(std::int32_t threads) {
  if (threads == threads_) return;
  threads_ = threads;
  parts_.context.set_threads(threads);
  parts_.costs.step_model.set_threads(threads);
}

ContextCalls::PrefillPause::PrefillPause(ContextCalls& calls)
    : calls_(calls), is_taken_(!calls.is_pausing_ && calls.cores_.takes_turns()) {
  if (!is_taken_) return;
  calls_.is_pausing_ = true;
  const LaneParts& parts = calls_.parts_;
  const TimePoint began = parts.clock.now();
  calls_.cores_.gate().close();
  const TimePoint ended = parts.clock.now();
  record_span(kPauseSpan, began, ended);
  const double ms = to_ms(ended - began);
  log_debug("lane {}: waited {:.2f} ms for the prefill lane to pause", parts.options.index, ms);
  calls_.gate_ms_ = std::max(0.9 * calls_.gate_ms_, ms);
}

ContextCalls::PrefillPause::~PrefillPause() {
  if (!is_taken_) return;
  calls_.is_pausing_ = false;
  calls_.cores_.gate().open();
}

double ContextCalls::charge(std::int32_t rows, double kv_tokens) {
  const double bytes = sched::bytes_of_call(parts_.options.weights, rows, kv_tokens, parts_.shape().kv_bytes_per_token);
  parts_.stats().record_bytes_moved(bytes, last_.ms());
  bandwidth_.charge(bytes, to_ms(last_.began.time_since_epoch()));
  return bytes;
}

// The time that the tick leaves, but at least a quarter of its decode calls. At most the usual time of a tick, or half as long
// as the decode calls beside them, if the streams would wait longer.
double ContextCalls::prefill_slice_ms(double tick_ms, std::int32_t decode_calls) const {
  const double call_ms = parts_.costs.step_model.decode_ms() * decode_calls;
  return std::max(call_ms / 4, std::min(tick_ms, std::max(parts_.options.tick_ms, 1.5 * call_ms)) - call_ms - gate_ms_);
}

}  // namespace uma::engine
