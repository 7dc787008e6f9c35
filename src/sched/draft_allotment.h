// Decides how many draft tokens of each sequence a decode call verifies, and how many rows fill it up to a cheaper width.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace uma::sched {

// The draft tokens that one sequence has.
struct DraftOffer {
  double chance = 0;           // Probability that a draft token is right if those before it are.
  std::int32_t available = 0;  // Draft tokens, <= room.
  std::int32_t room = 0;       // Rows that the sequence can have besides the one of its next token.
  std::int32_t allotted = 0;   // Written: draft tokens,
  std::int32_t fill = 0;       // and rows without use behind them.
};

// Returns the expected time of the planned decode call with so many more rows, >= 0.
using CallTime = std::function<double(std::int32_t more_rows)>;

// Allots the rows with which the call gives the most tokens per time. None, if that is hardly more than without any. A call has
// a row for each offer, and at most `rows_max` more. `evenly`: every sequence gets as many rows, because the library computes
// sequences of a split context together only then.
void allot_drafts(std::span<DraftOffer> offers, std::int32_t rows_max, bool evenly, const CallTime& call_ms);

}  // namespace uma::sched
