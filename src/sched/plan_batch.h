// Chooses the tokens of the next tick: every decoding sequence first, then prefill chunks sized by predicted time. Pure, except
// for the chunk size, which follows from earlier ticks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "sched/step_model.h"

namespace uma::sched {

inline constexpr double kNotDue = std::numeric_limits<double>::infinity();
inline constexpr double kBackgroundWaitMaxMs = 10'000;

struct SequenceView {
  std::uint64_t id = 0;             // Constant from tick to tick.
  std::int32_t index = 0;           // The caller's index, returned in the plan.
  std::int32_t slot = 0;            // Its slot in the context.
  std::int32_t group = 0;           // Only sequences of one group can share a call.
  std::int32_t pending_tokens = 0;  // Tokens not yet in the cache, >= 1.
  std::int32_t cached_tokens = 0;   // Tokens in the cache.
  bool decodes = false;             // Its only pending token was sampled in the last tick.
  bool is_background = false;
  double waited_ms = 0;     // Time since the request's arrival.
  double placed_ms = 0;     // Time since it got its slot.
  double due_ms = kNotDue;  // Time until its first token is due; negative: late.
};

struct BatchLimits {
  std::int32_t rows_max = 512;     // Limit of one library call.
  std::int32_t ubatch_rows = 512;  // Rows that the library computes at once.
  std::int64_t cells = 0;          // See StepShape::add_decode.
  double tick_ms = 30;             // Time of a tick while sequences decode.
  // Groups rows so that each has the same bits regardless of other requests: a multiple of kFastChunk of one prompt, or its
  // last rows; or all rows of several short prompts (docs/decisions/0014).
  bool fixed_grid = false;
  bool serves_background = true;  // Background streams get their row even if not all fit into tick_ms.
  double prefill_tick_ms = 250;   // Time of a tick without decoding sequences.
  // Time of a tick without decoding sequences that completes prompts, so that a burst gets its first tokens together. Prompts
  // of at most kFastChunk tokens may take longer (docs/decisions/0067).
  double whole_prompts_ms = 1500;
};

struct PlanRow {
  std::int32_t index = 0;         // See SequenceView::index.
  std::int32_t slot = 0;          // See SequenceView::slot.
  std::int32_t group = 0;         // See SequenceView::group.
  std::int32_t tokens_count = 0;  // Taken from the front of the pending tokens.
};

// The tokens of one tick: a library call for the decode rows of each group, and one call for prompts. Decode rows and prefill
// chunks never share a call, because the library splits mixed rows and then misses its fast path. The rows of a call are in
// ascending order of slots, the only order that the library computes as one unit (docs/MEASUREMENTS.md).
struct BatchPlan {
  std::vector<PlanRow> decode;   // One token each, group by group.
  std::vector<PlanRow> prefill;  // A sequence appears once; all rows are of one group.

  void clear() {
    decode.clear();
    prefill.clear();
  }
  [[nodiscard]] bool is_empty() const { return decode.empty() && prefill.empty(); }
};

// The number of prefill rows beside decoding sequences. It falls at once when fewer fit, and grows only after kTicksToGrow
// consecutive ticks in which more would have fitted, and then to the smallest number of these.
class ChunkSize {
 public:
  static constexpr int kTicksToGrow = 4;

  // Returns how many rows a tick may take, <= rows_fitting, if `rows_fitting` >= 1 would keep its time.
  std::int32_t follow(std::int32_t rows_fitting);

 private:
  std::int32_t rows_ = 0;  // 0: no tick yet.
  std::int32_t rows_next_ = 0;
  int ticks_larger_ = 0;
};

// A single row over more cells than this is divided among the library's threads, which changes the order of summation: one more
// cell pads a sequence to 512.
inline constexpr std::int32_t kDividedCells = 255;

inline constexpr std::int32_t kPrefillChunkMin = kChunkStep;

// The order in which prompts are computed, smallest first. First come prompts whose first token is due and can still be in
// time, by their spare time; then the shortest first, such as the next turn of a known conversation, aged by the time in the
// context, so that no prompt starves: one that has been there kPatience times as long as its own computation takes, or
// kPatienceMaxMs longer, precedes every new one. Earlier waiting for a fair turn does not count.
// Background prompts come last, unless they have waited for kBackgroundWaitMaxMs.
inline constexpr double kPatience = 4;
inline constexpr double kPatienceMaxMs = 30'000;
[[nodiscard]] double prefill_rank(const SequenceView& view, const StepModel& model);

// Rows of a call with fixed_grid if `rows_fitting` >= 0 keep the time: at least kFastChunk, or the rest.
[[nodiscard]] inline std::int32_t grid_rows(std::int32_t pending, std::int32_t rows_fitting) {
  if (pending < kFastChunk) return pending;
  return std::clamp(rows_fitting, kFastChunk, pending) / kFastChunk * kFastChunk;
}

// Rows of the next call for a prompt that is computed alone, of which `pending` >= 1 tokens remain behind `cached` ones. From
// the second call on they are multiples of kFastChunk, at which the library computes fastest. The remainder comes first, behind
// the fewest tokens: in a call of its own if that costs less than kFastChunk rows, as the library computes the remainder of a
// large call like so many. Behind 6,900 tokens 60 rows alone take 2.0 s, and 64 rows 0.74 s (one core, 134 M Q8_0). If not even
// `rows_least`, a multiple of kFastChunk, keep the budget, the call has that many.
[[nodiscard]] std::int32_t aligned_rows(const StepModel& model, double budget_ms, std::int32_t cached, std::int32_t pending,
                                        std::int32_t rows_max, std::int32_t rows_least = kFastChunk);

// Writes the next plan into `plan`, whose memory is reused, and stores the fitting rows in `chunk`. Ensures: every decoding
// sequence is in plan.decode, up to rows_max, except background ones if the limits say so, so that no group waits for another;
// each call has at most rows_max rows; pending prompts of the first one's group get at least min(kPrefillChunkMin, pending)
// rows. Beyond that minimum, the guarded time of all calls stays within the tick's; if the minimum alone exceeds it, a
// remainder shorter than the minimum is added. Prompts are taken in the order of prefill_rank.
void plan_batch(std::span<const SequenceView> sequences, const StepModel& model, const BatchLimits& limits, ChunkSize& chunk,
                BatchPlan& plan);

}  // namespace uma::sched
