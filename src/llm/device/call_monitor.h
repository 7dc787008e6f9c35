// Ends a computation early.
#pragma once

namespace uma::llm {

// Asked between the steps of a computation, on one of the library's threads. It may block, which delays the computation.
class CallMonitor {
 public:
  virtual ~CallMonitor() = default;
  // True: end the computation early.
  virtual bool wants_end() = 0;
};

}  // namespace uma::llm
