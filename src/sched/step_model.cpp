#include "sched/step_model.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace uma::sched {
namespace {

constexpr std::size_t kTerms = CallCost::kTerms;
using Terms = CallCost::Terms;
using Matrix = std::array<Terms, kTerms>;

constexpr double kForgetting = 1.0 / 24;  // Share of the knowledge in the direction of an observation that is forgotten.
// Share of all other knowledge that is forgotten, which bounds the error of very long sums.
constexpr double kFading = 1.0 / 16384;
constexpr double kBelief = 0.04;  // Weight of an ordinary observation: a coefficient may be wrong by 5 of its deviations.
constexpr double kClip = 3;       // Deviations.
constexpr double kDeviationMin = 0.02;
constexpr double kTermSizeStep = 1.0 / 64;
constexpr double kDeviationStep = 1.0 / 64;
constexpr double kDriftAllowed = 0.75;  // Deviations.
constexpr double kDriftMax = 8;         // Four clipped residuals of one sign.
constexpr double kFadingOfChange = 0.8;
constexpr double kFadingOfAssumed = 0.9;
constexpr double kPivotMin = 1e-13;  // Smallest pivot relative to its diagonal; less is rounding.
constexpr double kGuardQuantile = 0.95;
constexpr double kGuardStep = 0.02;
constexpr double kGuardMax = 4;
constexpr double kRatioMax = 64;
constexpr double kFollowMax = 16;  // How far the cost of an absent term follows changes of speed.

// Units of the terms: an ordinary call has about one of each.
constexpr double kDecodeKvUnit = 4096;
constexpr double kSkippedUnit = 16384;
constexpr double kPrefillRowsUnit = kFastChunk;
constexpr double kPrefillKvUnit = kFastChunk * 1024.0;

// A decode call's rows share the reading of the weights; a prompt's rows do not, and those of small chunks cost 1.4 times as
// much (docs/MEASUREMENTS.md).
constexpr Terms kDecodeProfile{1, 0.5, 0.5, 0, 0};
constexpr Terms kPrefillProfile{0, 0.7, 0.3, 0, 0};
// How much slower the library's attention is than its multiplication by weights, for the same arithmetic: measured 11 with
// AMX, where the difference is greatest (docs/MEASUREMENTS.md). Too much only makes the first chunks behind many tokens small.
constexpr double kAttentionSlowdown = 12;

double dot(const Terms& a, const Terms& b) {
  double sum = 0;
  for (std::size_t i = 0; i < kTerms; ++i) sum += a[i] * b[i];
  return sum;
}

Terms scaled(Terms terms, double factor) {
  for (double& term : terms) term *= factor;
  return terms;
}

Terms product(const Matrix& matrix, const Terms& terms) {
  Terms result;
  for (std::size_t i = 0; i < kTerms; ++i) result[i] = dot(matrix[i], terms);
  return result;
}

// Solves matrix * x = right_side in the coefficients of `members`, the others being 0, by Cholesky's decomposition. Requires
// a positive definite matrix.
Terms solve_for(const Matrix& matrix, const Terms& right_side, const std::array<bool, kTerms>& members) {
  Matrix lower{};
  Terms half{};
  for (std::size_t i = 0; i < kTerms; ++i) {
    if (!members[i]) continue;
    double sum = right_side[i];
    for (std::size_t j = 0; j <= i; ++j) {
      if (!members[j]) continue;
      double rest = matrix[i][j];
      for (std::size_t k = 0; k < j; ++k) rest -= lower[i][k] * lower[j][k];
      if (j < i) {
        lower[i][j] = rest / lower[j][j];
        sum -= lower[i][j] * half[j];
      } else {
        rest = std::max(rest, kPivotMin * matrix[i][i]);
        UMA_CHECK(rest > 0);
        lower[i][i] = std::sqrt(rest);
        half[i] = sum / lower[i][i];
      }
    }
  }
  Terms result{};
  for (std::size_t i = kTerms; i-- > 0;) {
    if (!members[i]) continue;
    double sum = half[i];
    for (std::size_t k = i + 1; k < kTerms; ++k) sum -= lower[k][i] * result[k];
    result[i] = sum / lower[i][i];
  }
  return result;
}

Terms prefill_profile(double attention_share) {
  Terms profile = kPrefillProfile;
  profile[3] = profile[1] * kAttentionSlowdown * attention_share * (kPrefillKvUnit / kPrefillRowsUnit);
  return profile;
}

constexpr std::array<bool, kTerms> kAllTerms{true, true, true, true, true};

bool is_empty(const StepShape& shape) {
  return shape.decode_rows == 0 && shape.prefill_rows == 0;
}

}  // namespace

// --- StepShape

void StepShape::add_decode(std::int64_t cached, std::int32_t drafts, std::int64_t cells) {
  decode_rows += 1;
  draft_rows += drafts;
  const std::int64_t rows = 1 + drafts;
  kv_tokens += rows * cached + rows * (rows - 1) / 2;
  skipped_cells += rows * std::max<std::int64_t>(0, cells - cached);
}

void StepShape::add_padding(std::int64_t cached) {
  padding_rows += 1;
  padding_kv_tokens += cached;
}

StepShape StepShape::with_drafts(std::int32_t rows) const {
  UMA_CHECK(decode_rows > 0);
  StepShape shape = *this;
  shape.padding_rows = 0;
  shape.padding_kv_tokens = 0;
  const std::int64_t present = decode_rows + draft_rows;
  shape.draft_rows += rows;
  shape.kv_tokens += rows * kv_tokens / present;
  shape.skipped_cells += rows * skipped_cells / present;
  return shape;
}

void StepShape::add_chunk(std::int32_t rows, std::int64_t cached) {
  const std::int64_t kv = rows * cached + std::int64_t{rows} * (rows - 1) / 2;
  prefill_rows += rows;
  kv_tokens += kv;
  if (rows < kFastChunk) {
    small_rows += rows;
    small_kv_tokens += kv;
  }
}

// --- CallCost

double CallCost::predict_ms(const Terms& terms) const {
  return dot(coefficients_, terms);
}

void CallCost::begin(const Terms& terms, double ms) {
  const double units = dot(profile_, terms);
  UMA_CHECK(units > 0);
  coefficients_ = scaled(profile_, ms / units);
  for (std::size_t i = 0; i < kTerms; ++i) squares_[i] = std::pow((terms[i] > 0 ? terms[i] : 1) / ms, 2);
  fade(1);
  is_known_ = true;
}

void CallCost::observe(const Terms& terms, double ms) {
  if (!is_known_) begin(terms, ms);
  Residual seen = residual(terms, ms);
  note_residual(seen);
  if (has_changed_speed(seen)) seen = residual(terms, ms);
  absorb(terms, seen);
  solve();
  ++observed_count_;
}

CallCost::Residual CallCost::residual(const Terms& terms, double ms) const {
  const double predicted = predict_ms(terms);
  const double scale = std::max(predicted, ms / 2);  // Never 0, and a shape predicted far too low does not outweigh all others.
  // Uncertainty about such a shape: 0 for a common one, about 1 for one that was seen once.
  const Terms unit = scaled(terms, 1 / scale);
  const double leverage = dot(unit, solve_for(information_, unit, kAllTerms));
  const double relative = (ms - predicted) / scale;
  return {.scale_ms = scale,
          .relative = relative,
          .deviations = relative / (deviation_ * std::sqrt(1 + leverage)),
          .ratio = ms / std::max(predicted, ms / kRatioMax)};
}

void CallCost::note_residual(const Residual& residual) {
  // Moves towards the median of the sizes; an outlier moves it no further than any other value.
  constexpr double kMedianOfNormal = 0.6745;
  const bool is_larger = std::abs(residual.deviations) > kMedianOfNormal;
  const double deviation_step = std::max(kDeviationStep, learning_rate());
  deviation_ = std::clamp(deviation_ * std::exp(is_larger ? deviation_step : -deviation_step), kDeviationMin, 1.0);

  const double step = std::max(kGuardStep, learning_rate());
  const double move = residual.ratio > guard_ ? kGuardQuantile : kGuardQuantile - 1;
  guard_ = std::clamp(guard_ * (1 + step * move), 1.0, kGuardMax);
}

bool CallCost::Drift::add(double deviations) {
  sum = std::max(0.0, sum + std::min(deviations, kClip) - kDriftAllowed);
  run = sum > 0 ? run + 1 : 0;
  return sum > kDriftMax;
}

double CallCost::ratio_median(std::size_t count) const {
  std::array<double, std::tuple_size_v<decltype(ratios_)>> last{};
  count = std::min(count, last.size());
  for (std::size_t i = 0; i < count; ++i) last[i] = ratios_[(ratios_next_ + ratios_.size() - 1 - i) % ratios_.size()];
  const auto middle = last.begin() + static_cast<std::ptrdiff_t>(count / 2);
  std::nth_element(last.begin(), middle, last.begin() + static_cast<std::ptrdiff_t>(count));
  return *middle;
}

bool CallCost::has_changed_speed(const Residual& residual) {
  ratios_[ratios_next_] = residual.ratio;
  ratios_next_ = (ratios_next_ + 1) % ratios_.size();
  const bool is_slower = slower_.add(residual.deviations);
  const bool is_faster = faster_.add(-residual.deviations);
  if (!is_slower && !is_faster) return false;
  // Another clock rate or a busy neighbour changes all costs alike; otherwise new observations correct the rest soon.
  rescale(ratio_median(is_slower ? slower_.run : faster_.run));
  fade(kFadingOfChange);
  slower_ = {};
  faster_ = {};
  return true;
}

// Calls correct the cost of a term they have; the cost of other terms must not drift without bound.
void CallCost::rescale(double factor) {
  Terms factors;
  for (std::size_t i = 0; i < kTerms; ++i) {
    const double followed = std::clamp(followed_[i] * factor, 1 / kFollowMax, kFollowMax);
    factors[i] = followed / followed_[i];
    followed_[i] = followed;
  }
  for (std::size_t i = 0; i < kTerms; ++i) {
    for (std::size_t j = 0; j < kTerms; ++j) information_[i][j] /= factors[i] * factors[j];
    coefficients_[i] *= factors[i];
    right_side_[i] /= factors[i];
    squares_[i] /= factors[i] * factors[i];
  }
}

// Replaces a share of the knowledge by a weak belief in the present coefficients.
void CallCost::fade(double share) {
  for (std::size_t i = 0; i < kTerms; ++i) {
    const double belief = share * kBelief * squares_[i];
    information_[i] = scaled(information_[i], 1 - share);
    information_[i][i] += belief;
    right_side_[i] = (1 - share) * right_side_[i] + belief * coefficients_[i];
  }
}

void CallCost::absorb(const Terms& terms, const Residual& residual) {
  const Terms unit = scaled(terms, 1 / residual.scale_ms);
  const Terms direction = product(information_, unit);
  const double forgotten = kForgetting / dot(unit, direction);
  const double right_side_there = dot(unit, right_side_);
  // The clipped residual as a time in units of the scale.
  const double clipped =
      std::abs(residual.deviations) > kClip ? residual.relative * kClip / std::abs(residual.deviations) : residual.relative;
  const double target = dot(unit, coefficients_) + clipped;
  for (std::size_t i = 0; i < kTerms; ++i) {
    for (std::size_t j = 0; j < kTerms; ++j) {
      information_[i][j] += unit[i] * unit[j] - forgotten * direction[i] * direction[j];
    }
    right_side_[i] += unit[i] * target - forgotten * direction[i] * right_side_there;
    if (unit[i] <= 0) continue;
    squares_[i] += (unit[i] * unit[i] - squares_[i]) * std::max(kTermSizeStep, learning_rate());
    followed_[i] = 1;
  }
  fade(kFading);
}

// The coefficients of least error; while one is negative, the most negative is set to 0.
void CallCost::solve() {
  std::array<bool, kTerms> members = kAllTerms;
  for (std::size_t left_out = 0; left_out <= kTerms; ++left_out) {
    const Terms solution = solve_for(information_, right_side_, members);
    const auto least = std::ranges::min_element(solution);
    if (*least >= 0) {
      coefficients_ = solution;
      return;
    }
    members[static_cast<std::size_t>(least - solution.begin())] = false;
  }
}

void CallCost::assume(const CallCost& other, double factor) {
  *this = other;
  followed_.fill(1);
  rescale(factor);
  fade(kFadingOfAssumed);
  deviation_ = kDeviationAtFirst;
  slower_ = {};
  faster_ = {};
  observed_count_ = 0;
}

// --- StepModel

StepModel::StepModel(double attention_share) : attention_share_(attention_share) {
  UMA_CHECK(std::isfinite(attention_share) && attention_share >= 0);
  set_threads(1);
}

StepModel::Costs::Costs(std::int32_t threads_count, double attention_share)
    : threads(threads_count), decode(kDecodeProfile), prefill(prefill_profile(attention_share)) {}

void StepModel::set_threads(std::int32_t threads) {
  UMA_CHECK(threads >= 1);
  const auto found = std::ranges::find(by_threads_, threads, &Costs::threads);
  current_ = static_cast<std::size_t>(found - by_threads_.begin());
  if (found == by_threads_.end()) by_threads_.emplace_back(threads, attention_share_);
  assume_unknown(by_threads_[current_]);
}

// Costs without an observation are those of the nearest number of threads that has some.
void StepModel::assume_unknown(Costs& unknown) {
  for (CallCost Costs::* const kind : {&Costs::decode, &Costs::prefill}) {
    CallCost& cost = unknown.*kind;
    if (cost.observed_count() > 0) continue;
    const Costs* nearest = nullptr;
    const auto distance = [&](const Costs& costs) { return std::abs(std::log(double(costs.threads) / unknown.threads)); };
    for (const Costs& costs : by_threads_) {
      if ((costs.*kind).observed_count() == 0) continue;
      if (nearest == nullptr || distance(costs) < distance(*nearest)) nearest = &costs;
    }
    if (nearest != nullptr) cost.assume(nearest->*kind, static_cast<double>(nearest->threads) / unknown.threads);
  }
}

void StepModel::set_width_costs(std::span<const double, WidthCosts::kWidths> ms) {
  width_costs_.emplace(ms);
  for (Costs& costs : by_threads_) {
    const CallCost& known = costs.decode;
    // Rows cost what the widths say, until calls show otherwise. Costs of cells are kept for the present number of threads,
    // which the others follow.
    const auto term_ms = [&](std::size_t term) {
      Terms terms{};
      terms[term] = 1;
      return known.predict_ms(terms);
    };
    costs.decode = CallCost({ms.front(), 0, 0, term_ms(3), term_ms(4)});
  }
  CallCost& current = by_threads_[current_].decode;
  for (std::int32_t rows = 1; rows <= WidthCosts::kWidths; ++rows) {
    StepShape shape;
    for (std::int32_t row = 0; row < rows; ++row) shape.add_decode(0);
    current.observe(terms_of(shape), ms[static_cast<std::size_t>(rows - 1)]);
  }
  for (Costs& costs : by_threads_) assume_unknown(costs);
}

Terms StepModel::terms_of(const StepShape& shape) const {
  if (shape.prefill_rows == 0) {
    return {width_costs_ ? width_costs_->of(shape.decode_rows + shape.draft_rows + shape.padding_rows) : 1,
            static_cast<double>(shape.decode_rows), static_cast<double>(shape.draft_rows),
            static_cast<double>(shape.kv_tokens + shape.padding_kv_tokens) / kDecodeKvUnit,
            static_cast<double>(shape.skipped_cells) / kSkippedUnit};
  }
  return {1, shape.prefill_rows / kPrefillRowsUnit, shape.small_rows / kPrefillRowsUnit,
          static_cast<double>(shape.kv_tokens) / kPrefillKvUnit, static_cast<double>(shape.small_kv_tokens) / kPrefillKvUnit};
}

const CallCost& StepModel::cost_of(const StepShape& shape) const {
  UMA_CHECK(shape.decode_rows == 0 || shape.prefill_rows == 0);
  return shape.prefill_rows > 0 ? by_threads_[current_].prefill : by_threads_[current_].decode;
}

void StepModel::observe(const StepShape& shape, double ms) {
  UMA_CHECK(!is_empty(shape) && (shape.decode_rows == 0 || shape.prefill_rows == 0));
  if (!std::isfinite(ms) || ms <= 0) return;
  Costs& costs = by_threads_[current_];
  if (shape.prefill_rows > 0) {
    costs.prefill.observe(terms_of(shape), ms);
    rows_largest_ = std::max(rows_largest_, shape.prefill_rows);
    cached_last_ = std::max<std::int64_t>(0, shape.kv_tokens / shape.prefill_rows - (shape.prefill_rows - 1) / 2);
    return;
  }
  costs.decode.observe(terms_of(shape), ms);
  has_drafted_ = has_drafted_ || shape.draft_rows > 0;
  const auto of_decode_rows = [&](std::int64_t sum) {
    return sum * shape.decode_rows / (shape.decode_rows + shape.draft_rows);
  };
  last_decode_ = {.decode_rows = shape.decode_rows,
                  .padding_rows = shape.padding_rows,
                  .kv_tokens = of_decode_rows(shape.kv_tokens),
                  .skipped_cells = of_decode_rows(shape.skipped_cells),
                  .padding_kv_tokens = shape.padding_kv_tokens};
}

double StepModel::predict_ms(const StepShape& shape) const {
  return is_empty(shape) ? 0 : cost_of(shape).predict_ms(terms_of(shape));
}

double StepModel::guarded_ms(const StepShape& shape) const {
  return is_empty(shape) ? 0 : cost_of(shape).guard() * predict_ms(shape);
}

double StepModel::guarded_ms(const StepShape& decode, const StepShape& prefill) const {
  const double decode_expected = predict_ms(decode);
  const double prefill_expected = predict_ms(prefill);
  return decode_expected + prefill_expected +
         std::hypot(guarded_ms(decode) - decode_expected, guarded_ms(prefill) - prefill_expected);
}

double StepModel::decode_ms() const {
  return predict_ms(last_decode_);
}

double StepModel::draft_row_ms() const {
  if (!knows_draft_rows() || is_empty(last_decode_)) return 0;
  constexpr std::int32_t kRows = 4;  // Widths that are multiples of 4 can cost less than smaller ones.
  // A row is never free; a smaller measurement is noise.
  constexpr double kShareMin = 0.01;
  return std::max((predict_ms(last_decode_.with_drafts(kRows)) - decode_ms()) / kRows, kShareMin * decode_ms());
}

double StepModel::skipped_cell_ms() const {
  return by_threads_[current_].decode.predict_ms({0, 0, 0, 0, 1 / kSkippedUnit});
}

double StepModel::prefill_ms(std::int32_t rows, std::int64_t cached) const {
  UMA_CHECK(rows > 0);
  StepShape shape;
  shape.add_chunk(rows, cached);
  return predict_ms(shape);
}

double StepModel::efficient_prefill_ms() const {
  const CallCost& prefill = by_threads_[current_].prefill;
  return prefill.is_known() ? 2 * prefill.guard() * prefill.predict_ms({1, 0, 0, 0, 0}) : 0;
}

double StepModel::prefill_tokens_per_ms() const {
  if (rows_largest_ == 0) return 0;
  const double ms = prefill_ms(rows_largest_, cached_last_);
  return ms > 0 ? rows_largest_ / ms : 0;
}

std::int32_t StepModel::rows_within(double budget_ms, std::int64_t cached, std::int32_t rows_max, const StepShape& decode,
                                    const StepShape& beside) const {
  if (!by_threads_[current_].prefill.is_known()) return std::min(rows_max, kFastChunk);
  // Tries every size, because the smallest fast chunk can be cheaper than the largest slow one.
  std::int32_t fitting = 0;
  for (std::int32_t rows = std::min(rows_max, kChunkStep); rows > 0;) {
    StepShape shape = beside;
    shape.add_chunk(rows, cached);
    if (guarded_ms(decode, shape) <= budget_ms) fitting = rows;
    if (rows == rows_max) break;
    rows = std::min(rows_max, rows + (rows < kFastChunk ? kChunkStep : kFastChunk));
  }
  return fitting;
}

}  // namespace uma::sched
