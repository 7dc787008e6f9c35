// Predicts the time of a library call from earlier calls: for each number of threads and kind of call, a linear model of its
// rows and of the cached tokens they attend to, fitted online. Owned by one lane.
//
//   decode   t = a * width + b * decode rows + c * draft rows + d * n_past of all rows + e * skipped cells of all rows
//   prefill  t = a + b * rows + c * rows of small chunks + d * n_past of all rows + e * n_past of the rows of small chunks
//
// `width` is 1, or what a call with so many rows costs by WidthCosts, if that was measured.
//
// Chunks of fewer than kFastChunk rows miss the library's tiled attention (docs/MEASUREMENTS.md); c and e are their extra cost.
// Skipped cells are those of other sequences, and free ones before the last used one: the library looks at each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "sched/width_costs.h"

namespace uma::sched {

inline constexpr std::int32_t kFastChunk = 64;  // Rows of one sequence in a call.
inline constexpr std::int32_t kChunkStep = 16;  // Smaller chunks are multiples of this.

// The rows of one library call, either of decoding sequences or of prompts.
struct StepShape {
  std::int32_t decode_rows = 0;
  std::int32_t draft_rows = 0;         // Rows beside the decode rows: draft tokens, and rows without use.
  std::int32_t padding_rows = 0;       // Rows in slots of no running sequence, which make the call cheaper.
  std::int32_t prefill_rows = 0;       // All prefill rows.
  std::int32_t small_rows = 0;         // Rows of chunks < kFastChunk.
  std::int64_t kv_tokens = 0;          // n_past summed over all rows: the number of tokens before each row.
  std::int64_t small_kv_tokens = 0;    // n_past summed over rows of chunks < kFastChunk.
  std::int64_t skipped_cells = 0;      // Cells that decode and draft rows skip.
  std::int64_t padding_kv_tokens = 0;  // n_past summed over the padding rows.

  // Adds a sequence's next token and `drafts` draft tokens after `cached` tokens. `cells`: those that the library looks at for
  // a row, the sequence's and others; 0: only its own.
  void add_decode(std::int64_t cached, std::int32_t drafts = 0, std::int64_t cells = 0);
  // A row after the `cached` tokens of an idle slot.
  void add_padding(std::int64_t cached);
  // A shape with the same decode and draft rows and so many draft rows more, which attend to as many cells as the mean of the
  // others. Requires a decode row.
  [[nodiscard]] StepShape with_drafts(std::int32_t rows) const;
  // Adds the next `rows` tokens of a prompt after `cached` tokens.
  void add_chunk(std::int32_t rows, std::int64_t cached);
};

// The time of one kind of call as a linear function of its terms: recursive least squares of the relative error, coefficients
// >= 0. An observation makes older ones of its own direction fade (directional forgetting: Cao, Schwartz, "A directional
// forgetting algorithm based on the decomposition of the information matrix", Automatica 2000), so knowledge about other
// shapes stays while one shape repeats for hours. Residuals are clipped at 3 robust scales (Huber). A lasting shift of the
// residuals (CUSUM: Page, Biometrika 1954) means that the machine has changed its speed.
// Invariants: the information matrix is positive definite, coefficients are finite and >= 0.
class CallCost {
 public:
  static constexpr std::size_t kTerms = 5;
  using Terms = std::array<double, kTerms>;

  // `profile` has the coefficients assumed at the first observation, up to a common factor.
  explicit CallCost(const Terms& profile) : profile_(profile) {}

  // Learns that a call with these terms took `ms` > 0. The terms are about 1 for an ordinary call; the profile must give them a
  // cost.
  void observe(const Terms& terms, double ms);
  // Returns 0 while nothing is known.
  [[nodiscard]] double predict_ms(const Terms& terms) const;
  // The 95th percentile of actual ÷ predicted time, >= 1.
  [[nodiscard]] double guard() const { return guard_; }
  [[nodiscard]] bool is_known() const { return is_known_; }
  [[nodiscard]] std::int64_t observed_count() const { return observed_count_; }
  // Assumes the knowledge of `other`, at `factor` times its costs, until own observations replace it.
  void assume(const CallCost& other, double factor);

 private:
  struct Residual {
    double scale_ms = 0;  // Reference of relative errors.
    double relative = 0;
    double deviations = 0;  // The error in expected deviations.
    double ratio = 0;       // Actual ÷ predicted time.
  };
  // One side of the CUSUM test.
  struct Drift {
    double sum = 0;
    std::size_t run = 0;  // Observations since the sum was 0.
    bool add(double deviations);
  };

  // Averages over all observations at first, then over the latest ones.
  [[nodiscard]] double learning_rate() const { return 1 / (8 + static_cast<double>(observed_count_)); }
  void begin(const Terms& terms, double ms);
  [[nodiscard]] Residual residual(const Terms& terms, double ms) const;
  void note_residual(const Residual& residual);
  [[nodiscard]] bool has_changed_speed(const Residual& residual);
  [[nodiscard]] double ratio_median(std::size_t count) const;
  void rescale(double factor);
  void fade(double share);
  void absorb(const Terms& terms, const Residual& residual);
  void solve();

  static constexpr double kDeviationAtFirst = 0.2;
  static constexpr double kGuardAtFirst = 1.1;

  Terms profile_;
  Terms coefficients_{};
  std::array<Terms, kTerms> information_{};  // Sum of the weighted products of terms.
  Terms right_side_{};  // Sum of the weighted products of terms and times: information_ * coefficients = right_side_.
  Terms squares_{};     // Means of the squared weighted terms, over the calls that have them.
  Terms followed_{1, 1, 1, 1, 1};         // Rescaling of each term since a call had it.
  double deviation_ = kDeviationAtFirst;  // Deviation of relative errors: 1.4826 * their median size.
  double guard_ = kGuardAtFirst;
  Drift slower_;
  Drift faster_;
  std::array<double, 8> ratios_{};  // The latest ratios, a ring buffer.
  std::size_t ratios_next_ = 0;
  std::int64_t observed_count_ = 0;
  bool is_known_ = false;
};

class StepModel {
 public:
  // `attention_share`: ContextShape::attention_share; 0: unknown, so that cached tokens cost nothing until measured.
  explicit StepModel(double attention_share = 0);

  // Sets the threads of later calls and predictions, `threads` >= 1. Each number of threads has separate coefficients; before
  // its first call they are those of the nearest number, scaled by the ratio of the two.
  void set_threads(std::int32_t threads);

  // Calls without cached tokens took `ms[n - 1]` for n rows, all > 0, with the present number of threads. Replaces what is
  // known of the rows of decode calls.
  void set_width_costs(std::span<const double, WidthCosts::kWidths> ms);

  // Learns that one library call of this shape took `ms`. Ignores a time that is not positive.
  void observe(const StepShape& shape, double ms);

  // Expected time of a call; 0 for an empty one, and before the first of its kind.
  [[nodiscard]] double predict_ms(const StepShape& shape) const;
  // The time that 95 % of such calls keep; 0 as above. Used for planning within a target.
  [[nodiscard]] double guarded_ms(const StepShape& shape) const;
  // The guarded time of two consecutive calls that are late independently: less than the sum.
  [[nodiscard]] double guarded_ms(const StepShape& decode, const StepShape& prefill) const;

  // Expected time of a call with the last call's decode rows and no drafts; 0 before the first.
  [[nodiscard]] double decode_ms() const;
  // Whether the cost of draft rows is known, from a measurement of widths or from the first draft.
  [[nodiscard]] bool knows_draft_rows() const { return has_drafted_ || width_costs_.has_value(); }
  // Cost of one more draft row in such a call, the mean of the first few; 0: not known.
  [[nodiscard]] double draft_row_ms() const;
  // Cost of a cell that a decode row skips; 0 before a call skipped some.
  [[nodiscard]] double skipped_cell_ms() const;
  // Expected time of a chunk with `cached` tokens before it; 0 before the first. Requires rows > 0.
  [[nodiscard]] double prefill_ms(std::int32_t rows, std::int64_t cached) const;
  // The guarded time of a call with prompts, half of which is for its rows and half does not depend on them; 0 before the
  // first.
  [[nodiscard]] double efficient_prefill_ms() const;
  // Prompt tokens per ms in calls of the largest size seen, at the depth of the last one; 0 before the first.
  [[nodiscard]] double prefill_tokens_per_ms() const;

  // The largest chunk that keeps a tick within `budget_ms`, guarded: a multiple of kChunkStep, from kFastChunk on a multiple of
  // that, or rows_max itself. `cached` tokens precede it; the tick's decode call and the rows already in the chunk's call are
  // given. 0: no chunk fits. At most kFastChunk while nothing is known.
  [[nodiscard]] std::int32_t rows_within(double budget_ms, std::int64_t cached, std::int32_t rows_max,
                                         const StepShape& decode = {}, const StepShape& beside = {}) const;

 private:
  struct Costs {
    Costs(std::int32_t threads_count, double attention_share);
    std::int32_t threads;
    CallCost decode;
    CallCost prefill;
  };

  void assume_unknown(Costs& unknown);
  [[nodiscard]] const CallCost& cost_of(const StepShape& shape) const;
  [[nodiscard]] CallCost::Terms terms_of(const StepShape& shape) const;

  double attention_share_;
  std::optional<WidthCosts> width_costs_;
  std::vector<Costs> by_threads_;  // In the order of first use.
  std::size_t current_ = 0;
  StepShape last_decode_;  // Without its drafts, with its padding.
  bool has_drafted_ = false;
  std::int32_t rows_largest_ = 0;  // Largest prefill call.
  std::int64_t cached_last_ = 0;   // Cached tokens before the last prefill call.
};

}  // namespace uma::sched
