// Chooses between measured candidates: a candidate replaces the default only if its gain is proven. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace uma::umad {

// Values of one repetition, one per column of the table; less is better. 0: not measured.
using Measurement = std::vector<double>;

// The measurements of one candidate. Repetition i of all candidates ran in direct succession, so that a busy phase of the
// machine affects all of them alike.
struct Trial {
  std::string name = {};
  std::vector<Measurement> repetitions = {};
  std::string impossible = {};  // Why the candidate cannot be used here; empty: it can.
};

struct Choice {
  std::size_t index = 0;
  double gain = 0;          // Share of time saved against the default; 0 if the default is kept.
  std::string reason = {};  // A sentence's end, as in "kept: the best other, 256, gains 1.2 %".
};

inline constexpr double kGainMin = 0.03;
inline constexpr std::size_t kRepetitionsMin = 3;

// The median of a column; 0 without measurements.
[[nodiscard]] double median(const Trial& trial, std::size_t column);

// The share of time that `trial` saves against `reference`: the median over repetitions of the geometric mean of the columns'
// ratios. Negative: slower. 0 if they have no common repetition.
[[nodiscard]] double gain_of(const Trial& trial, const Trial& reference, std::span<const std::size_t> columns);

// Returns the trial with the largest gain over trials[default_index] in these columns, if the gain is at least kGainMin, was
// measured at least kRepetitionsMin times, and appeared in three of four repetitions; otherwise the default.
[[nodiscard]] Choice choose(std::span<const Trial> trials, std::size_t default_index, std::span<const std::size_t> columns);

// Chooses whether prompts get a separate lane. trials[0] uses chunks, the others use lanes; column 0 is the streams' worst
// tick, column 1 the total time. Lanes that take more than a quarter longer are excluded.
[[nodiscard]] Choice choose_lanes(std::span<const Trial> trials, std::size_t default_index);

}  // namespace uma::umad
