// The cost of a decode call by its number of rows, as measured on this machine with this model. The library computes some
// widths faster than smaller ones: on one CPU without AMX a 1.2 B model in Q4_0 takes 43 ms for three rows and 28 ms for four
// (docs/decisions/0062).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>

#include "base/check.h"

namespace uma::sched {

// The time of a call with n rows at index n - 1, in ms > 0.
using WidthTimes = std::array<double, 16>;

class WidthCosts {
 public:
  static constexpr std::int32_t kWidths = std::tuple_size_v<WidthTimes>;
  static constexpr std::int32_t kPeriod = 8;  // The library's kernels compute 4 or 8 rows at once.

  // `ms[n - 1]` > 0 is the time of a call with n rows.
  explicit WidthCosts(std::span<const double, kWidths> ms) {
    for (std::size_t i = 0; i < ms.size(); ++i) relative_[i] = ms[i] / ms.front();
  }

  // The time of a call with `rows` >= 1 rows in units of that with one. Beyond kWidths the pattern of the last period goes on.
  [[nodiscard]] double of(std::int32_t rows) const {
    UMA_CHECK(rows >= 1);
    const std::int32_t periods = rows <= kWidths ? 0 : (rows - kWidths + kPeriod - 1) / kPeriod;
    const double per_period = std::max(0.0, relative_[kWidths - 1] - relative_[kWidths - kPeriod - 1]);
    return relative_[static_cast<std::size_t>(rows - periods * kPeriod - 1)] + periods * per_period;
  }

 private:
  std::array<double, kWidths> relative_{};
};

}  // namespace uma::sched
