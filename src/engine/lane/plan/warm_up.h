// Computes meaningless rows in a new context, so that the first request does not pay for what happens once: the weights' pages
// come into memory, the library makes its graphs and threads, and the step model learns what calls cost. Then measures calls of
// every width (sched::WidthCosts), unless an earlier start has (KeptWidths). Owned by the lane's thread, which runs one call at
// a time while it has no request. The first request ends the warm-up, in the middle of a call, but not the measurement, which
// goes on in an empty slot.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "core/ids.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/run/context_calls.h"
#include "llm/model.h"
#include "sched/width_costs.h"

namespace uma::engine {

class WarmUp {
 public:
  // Stands for a request in ContextCalls::cancel(), which ends the running call.
  static constexpr RequestId kId{UINT64_MAX};

  // The rows of its calls have this token.
  WarmUp(const LaneParts& parts, ContextCalls& calls, Token token);

  // Whether there is a call to run now. Requires: no sequence has a slot.
  [[nodiscard]] bool is_wanted() const { return next_ < warming_ || (next_ < steps_.size() && room()); }
  // Whether it is wanted even if requests wait.
  [[nodiscard]] bool holds_requests() const { return holds_requests_ && next_ < warming_; }
  // Whether a request is computed as fast as later ones, except for what the step model learns.
  [[nodiscard]] bool is_over() const { return next_ >= (holds_requests_ ? warming_ : std::min(kFirstSteps, warming_)); }
  // Runs the next call and empties the context's cells again, or finds what it would measure. Requires: is_wanted().
  void advance();
  // A request has come, or others compute: only the measurement is left. On a device that computes calls in a short time, the
  // first requests wait for the whole warm-up: a driver compiles programs for shapes of calls when they come first, which can
  // take seconds, and streams would stand still meanwhile.
  void interrupt() {
    if (!holds_requests_) next_ = std::max(next_, warming_);
  }

 private:
  // Rows of a call: so many of each of the first `sequences` sequences.
  struct Step {
    std::int32_t sequences = 1;
    std::int32_t rows = 1;
    bool is_first = false;     // The first of its kind, so its time shows more than the computation.
    bool is_measured = false;  // For the widths.
  };

  // The empty sequence in which a width can be measured.
  [[nodiscard]] std::optional<std::int32_t> room() const;
  // Takes the widths that an earlier start has measured. False: there are none.
  [[nodiscard]] bool take_kept();
  void take_width(std::int32_t rows, double ms);
  void keep_widths();

  // The calls that bring the weights' pages into memory and make the threads.
  static constexpr std::size_t kFirstSteps = 1;

  const LaneParts& parts_;
  ContextCalls& calls_;
  const Token token_;
  std::vector<Step> steps_;
  std::size_t warming_ = 0;  // The steps before the measurement.
  std::size_t next_ = 0;
  bool holds_requests_ = false;
  double held_ms_ = 0;
  std::int32_t measured_threads_ = 0;
  TimePoint measured_since_{};
  sched::WidthTimes width_ms_{};  // The least times so far; 0: none.
  std::vector<llm::BatchRow> rows_;
};

}  // namespace uma::engine
