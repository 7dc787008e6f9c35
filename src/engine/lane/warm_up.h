// Computes meaningless rows in a new context, so that the first request does not pay for what happens once: the weights' pages
// come into memory, the library makes its graphs and threads, and the step model learns what calls cost. Owned by the lane's
// thread, which runs one call at a time while it has no request; the first request ends the warm-up, in the middle of a call.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ids.h"
#include "engine/lane/context_calls.h"
#include "engine/lane/lane_parts.h"
#include "llm/model.h"

namespace uma::engine {

class WarmUp {
 public:
  // Stands for a request in ContextCalls::cancel(), which ends the running call.
  static constexpr RequestId kId{UINT64_MAX};

  WarmUp(const LaneParts& parts, ContextCalls& calls);

  [[nodiscard]] bool is_done() const { return next_ == steps_.size(); }
  // Runs the next call and empties the context again.
  void advance();
  void stop() { next_ = steps_.size(); }

 private:
  // Rows of a call: so many of each of the first `sequences` sequences.
  struct Step {
    std::int32_t sequences = 1;
    std::int32_t rows = 1;
    bool is_first = false;  // Of its kind, so its time shows more than the computation.
  };

  const LaneParts& parts_;
  ContextCalls& calls_;
  std::vector<Step> steps_;
  std::size_t next_ = 0;
  std::vector<llm::BatchRow> rows_;
};

}  // namespace uma::engine
