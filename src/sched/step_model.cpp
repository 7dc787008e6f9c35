#include "sched/step_model.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace uma::sched {
namespace {

double blend(double mean, double value) {
  return mean == 0 ? value : mean + (value - mean) / 8;
}

}  // namespace

std::size_t StepModel::class_of(std::int32_t rows) {
  UMA_CHECK(rows > 0);
  return std::min<std::size_t>(kClasses - 1, static_cast<std::size_t>(std::bit_width(static_cast<std::uint32_t>(rows - 1))));
}

void StepModel::observe_decode(double ms) {
  decode_ms_ = blend(decode_ms_, ms);
}

void StepModel::observe_drafts(std::int32_t draft_rows, double ms) {
  UMA_CHECK(draft_rows > 0);
  // A row is never free: what was measured as less is noise of the two times.
  constexpr double kShareMin = 0.01;
  draft_row_ms_ = blend(draft_row_ms_, std::max((ms - decode_ms_) / draft_rows, kShareMin * decode_ms_));
}

void StepModel::observe_prefill(std::int32_t rows, double ms) {
  double& mean = ms_per_row_[class_of(rows)];
  mean = blend(mean, ms / rows);
}

double StepModel::prefill_ms(std::int32_t rows) const {
  const auto wanted = static_cast<std::ptrdiff_t>(class_of(rows));
  for (std::ptrdiff_t distance = 0; distance < static_cast<std::ptrdiff_t>(kClasses); ++distance) {
    for (const std::ptrdiff_t index : {wanted - distance, wanted + distance}) {
      if (index < 0 || index >= static_cast<std::ptrdiff_t>(kClasses)) continue;
      const double mean = ms_per_row_[static_cast<std::size_t>(index)];
      if (mean > 0) return mean * rows;
    }
  }
  return 0;
}

double StepModel::prefill_tokens_per_ms() const {
  for (auto mean = ms_per_row_.rbegin(); mean != ms_per_row_.rend(); ++mean) {
    if (*mean > 0) return 1 / *mean;
  }
  return 0;
}

}  // namespace uma::sched
