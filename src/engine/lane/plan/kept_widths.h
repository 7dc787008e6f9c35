// Keeps the measured times of decode calls beyond the end of the process, so that only the first start on a machine measures
// them. The engine does not know where they are kept, nor which machine and model they belong to. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sched/width_costs.h"

namespace uma::engine {

class KeptWidths {
 public:
  virtual ~KeptWidths() = default;
  // The times measured with so many threads in a context with this Context::state_identity(); nullopt: there are none.
  [[nodiscard]] virtual std::optional<sched::WidthTimes> find(const std::string& context, std::int32_t threads) const = 0;
  // Replaces the times for this context and number of threads. What cannot be kept is measured again at the next start.
  virtual void keep(const std::string& context, std::int32_t threads, const sched::WidthTimes& ms) = 0;
};

}  // namespace uma::engine
