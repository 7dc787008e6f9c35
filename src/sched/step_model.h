// What a decode call will cost, learned from those that ran: exponentially weighted means (weight 1/8) of the time of decode
// calls and of prefill chunks by size class. Owned by one lane.
// Invariant: predictions are finite and, once anything was measured, positive.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace uma::sched {

class StepModel {
 public:
  // One library call with only decode rows took `ms`.
  void observe_decode(double ms);
  // One library call with decode rows and `draft_rows` > 0 beside them took `ms`.
  void observe_drafts(std::int32_t draft_rows, double ms);
  // One library call with `rows` prefill rows took `ms`. Requires rows > 0.
  void observe_prefill(std::int32_t rows, double ms);

  // Expected time of a decode call, ms; 0 before the first.
  [[nodiscard]] double decode_ms() const { return decode_ms_; }
  // What a draft row adds to a decode call, ms; 0 before the first was seen.
  [[nodiscard]] double draft_row_ms() const { return draft_row_ms_; }
  // Expected time of a prefill chunk, ms; 0 before the first. Sizes never seen are taken in proportion from the nearest one
  // seen.
  [[nodiscard]] double prefill_ms(std::int32_t rows) const;
  // Prompt tokens per ms with the largest chunks seen; 0 before the first.
  [[nodiscard]] double prefill_tokens_per_ms() const;

 private:
  // Class i holds chunks of (2^(i-1), 2^i] rows; the mean is of ms per row.
  static constexpr std::size_t kClasses = 13;
  static std::size_t class_of(std::int32_t rows);

  double decode_ms_ = 0;
  double draft_row_ms_ = 0;
  std::array<double, kClasses> ms_per_row_{};
};

}  // namespace uma::sched
