// Decides how many draft tokens of each sequence a decode call verifies, and how many rows fill it up to a cheaper width.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace uma::sched {

inline constexpr std::int32_t kFillRowsMax = 3;

// The draft tokens that one sequence has.
struct DraftOffer {
  double chance = 0;           // Probability that a draft token is right if those before it are.
  std::int32_t available = 0;  // Draft tokens.
  std::int32_t allotted = 0;   // Written.
};

// Returns the expected time of the planned decode call with so many more rows, >= 0.
using CallTime = std::function<double(std::int32_t more_rows)>;

// The number of rows without use, 0 to min(kFillRowsMax, rows_max), with which a call of `more_rows` more rows is fastest.
[[nodiscard]] std::int32_t fill_rows(std::int32_t more_rows, std::int32_t rows_max, const CallTime& call_ms);

// Allots the draft tokens with which the call gives the most tokens per time. None, if that is hardly more than without any.
// A call has a row for each offer, and at most `rows_max` more.
void allot_drafts(std::span<DraftOffer> offers, std::int32_t rows_max, const CallTime& call_ms);

}  // namespace uma::sched
