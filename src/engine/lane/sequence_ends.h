// Ends a lane's sequences: each posted job gets exactly one result in any case. Owned by the lane's thread.
#pragma once

#include <functional>
#include <optional>
#include <source_location>
#include <utility>

#include "base/thrown.h"
#include "core/error.h"
#include "core/event.h"
#include "core/ids.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/move/slot_eviction.h"
#include "engine/lane/run/reuse_check.h"

namespace uma::engine {

class SequenceEnds {
 public:
  using OnResult = std::function<void(GenerationResult)>;

  SequenceEnds(const LaneParts& parts, SlotEviction& eviction, ReuseCheck& reuse_check, OnResult on_result)
      : parts_(parts), eviction_(eviction), reuse_check_(reuse_check), on_result_(std::move(on_result)) {}

  // Ends a sequence that has not finished, and reports its result.
  void finish(Sequence& sequence, FinishReason reason, std::optional<Error> error = std::nullopt);
  // Work for the sequence has thrown: ends it in whatever state it is, and drops its cached tokens.
  void fail_thrown(Sequence& sequence, const Error& error);
  // Reports the result of a job that has only a terminal event.
  void report_failed(RequestId id, Event terminal);
  // Runs work for a sequence; an exception ends this sequence only.
  template <class Work>
  void contain(Sequence& sequence, Work&& work, const std::source_location& at = std::source_location::current()) {
    try {
      std::forward<Work>(work)();
    } catch (...) {
      fail_thrown(sequence, thrown_error(at));
    }
  }

  // The weighted mean time of a request in the context, in ms.
  [[nodiscard]] double service_ms() const { return service_ms_; }

 private:
  void leave_context(Sequence& sequence);
  [[nodiscard]] GenerationResult result_of(Sequence& sequence, FinishReason reason, std::optional<Error> error);

  const LaneParts& parts_;
  SlotEviction& eviction_;
  ReuseCheck& reuse_check_;
  const OnResult on_result_;
  double service_ms_ = 0;
};

}  // namespace uma::engine
