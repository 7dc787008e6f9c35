// Which of several ways of computing is worth leaving the default for. Pure: measured figures in, choice and reason out.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace uma::umad {

// Figures of one repetition, in the columns of its table; less is better in each. 0: not measured.
using Figures = std::vector<double>;

// One way of computing. Repetition i of all ways ran one after the other, so they saw the machine in the same mood.
struct Trial {
  std::string name = {};
  std::vector<Figures> repetitions = {};
  std::string impossible = {};  // why it cannot be had here; empty: it can
};

struct Choice {
  std::size_t index = 0;
  double gain = 0;          // share of time saved against the default; 0 where the default is kept
  std::string reason = {};  // a sentence's end, as in "kept: the best other, 256, gains 1.2 %"
};

inline constexpr double kGainMin = 0.03;
inline constexpr std::size_t kRepetitionsMin = 3;

// The median of a column; 0 where nothing was measured.
[[nodiscard]] double median(const Trial& trial, std::size_t column);

// The share of time saved by `trial` against `reference`: per repetition the geometric mean of the ratios of the columns, of
// those the median. Negative: slower. 0 where they have no repetition in common.
[[nodiscard]] double gain_of(const Trial& trial, const Trial& reference, std::span<const std::size_t> columns);

// The trial with the largest gain over trials[default_index] in these columns, of those whose gain is at least kGainMin, was
// measured at least kRepetitionsMin times, and was there in three of four repetitions; the default where there is none.
[[nodiscard]] Choice choose(std::span<const Trial> trials, std::size_t default_index, std::span<const std::size_t> columns);

// Whether prompts get a lane of their own. trials[0]: chunks; the others: lanes; column 0: the streams' worst tick, column 1:
// all work done. Lanes that take more than a quarter longer are out of the question.
[[nodiscard]] Choice choose_lanes(std::span<const Trial> trials, std::size_t default_index);

}  // namespace uma::umad
