// Chooses the tokens of the next tick: every decoding sequence first, then prefill chunks sized by predicted time. Pure but for
// the chunk size that it follows from tick to tick.
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
  std::uint64_t id = 0;             // the same from tick to tick
  std::int32_t index = 0;           // the caller's own number of the sequence, returned in the plan
  std::int32_t slot = 0;            // its place in the context
  std::int32_t pending_tokens = 0;  // not yet in the cache, >= 1
  std::int32_t cached_tokens = 0;   // before them
  bool decodes = false;             // its only pending token is one it sampled: it is in mid-stream
  bool is_background = false;
  double waited_ms = 0;     // since the request came
  double placed_ms = 0;     // since it has its slot
  double due_ms = kNotDue;  // until its first token is wanted; negative: it is late
};

struct BatchLimits {
  std::int32_t rows_max = 512;     // of one library call
  std::int32_t ubatch_rows = 512;  // computed at once by the library
  double tick_ms = 30;             // what a tick may take while sequences decode
  // Rows are put together so that each has the same bits in any company: of one prompt, a multiple of kFastChunk or its last
  // ones; or all of several short prompts (docs/decisions/0014).
  bool fixed_grid = false;
  bool serves_background = true;   // background streams have their row even where not all fit into tick_ms
  double prefill_tick_ms = 250;    // what a tick may take while none does
  double whole_prompts_ms = 1500;  // the same for prompts that the tick completes: a burst gets its first tokens together
};

struct PlanRow {
  std::int32_t index = 0;         // SequenceView::index
  std::int32_t slot = 0;          // SequenceView::slot
  std::int32_t tokens_count = 0;  // taken from the front of what is pending
};

// The tokens of one tick, in two library calls: decode rows and prefill chunks never share one, because the library cuts mixed
// rows apart and they miss its fast path. Both are in ascending order of slots, the only order that the library computes as one
// unit (docs/MEASUREMENTS.md).
struct BatchPlan {
  std::vector<PlanRow> decode;   // one token each
  std::vector<PlanRow> prefill;  // a sequence appears once

  void clear() {
    decode.clear();
    prefill.clear();
  }
  [[nodiscard]] bool is_empty() const { return decode.empty() && prefill.empty(); }
};

// How many prefill rows go beside decoding sequences: down at once when fewer fit, up only after kTicksToGrow ticks in a row in
// which more would have fitted, and then to the fewest of those.
class ChunkSize {
 public:
  static constexpr int kTicksToGrow = 4;

  // Of a tick in which `rows_fitting` >= 1 would keep its time: how many it may take, <= rows_fitting.
  std::int32_t follow(std::int32_t rows_fitting);

 private:
  std::int32_t rows_ = 0;  // 0: no tick yet
  std::int32_t rows_next_ = 0;
  int ticks_larger_ = 0;
};

// A lone row over more cells than these is divided among the library's threads, which sums in another order: with one more a
// sequence is padded to 512.
inline constexpr std::int32_t kDividedCells = 255;

inline constexpr std::int32_t kPrefillChunkMin = kChunkStep;

// The order in which prompts are computed, smallest first: those whose first token is due, and can still come in time, by what
// time they have to spare; then shortest first, aged by the time in the context, so that a prompt that has been there as long
// as its own computing takes goes before every new one and none starves; who waited before that for its fair turn gains nothing
// here. Background prompts come after all interactive ones, unless they have waited for kBackgroundWaitMaxMs.
[[nodiscard]] double prefill_rank(const SequenceView& view, const StepModel& model);

// Rows of a call with fixed_grid, where `rows_fitting` >= 0 keep the time: at least kFastChunk, or the rest.
[[nodiscard]] inline std::int32_t grid_rows(std::int32_t pending, std::int32_t rows_fitting) {
  if (pending < kFastChunk) return pending;
  return std::clamp(rows_fitting, kFastChunk, pending) / kFastChunk * kFastChunk;
}

// Writes the next plan into `plan`, whose memory is reused, and notes in `chunk` what fitted. Ensures: every decoding sequence
// is in plan.decode, up to rows_max, but background ones where limits say so; the rows of each call are <= rows_max; where
// something is to prefill, at least min(kPrefillChunkMin, pending) rows of it are. Beyond that minimum the guarded time of both
// calls keeps the tick's; where the minimum alone breaks it, a remainder shorter than the minimum goes along. Prompts are taken
// in the order of prefill_rank.
void plan_batch(std::span<const SequenceView> sequences, const StepModel& model, const BatchLimits& limits, ChunkSize& chunk,
                BatchPlan& plan);

}  // namespace uma::sched
