#include "umad/tune/tune_choice.h"

#include <algorithm>
#include <cmath>
#include <format>

namespace uma::umad {
namespace {

constexpr double kTotalFactorMax = 1.25;

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Per repetition: the mean logarithm of trial / reference over the columns that both have.
std::vector<double> log_ratios(const Trial& trial, const Trial& reference, std::span<const std::size_t> columns) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(trial.repetitions.size(), reference.repetitions.size()); ++i) {
    double sum = 0;
    int count = 0;
    for (const std::size_t column : columns) {
      const double mine = trial.repetitions[i][column];
      const double other = reference.repetitions[i][column];
      if (mine <= 0 || other <= 0) continue;
      sum += std::log(mine / other);
      ++count;
    }
    if (count > 0) ratios.push_back(sum / count);
  }
  return ratios;
}

std::string percent(double share) {
  return std::format("{:.1f} %", 100 * share);
}

bool is_seen_often(const std::vector<double>& ratios) {
  return 4 * std::ranges::count_if(ratios, [](double ratio) { return ratio < 0; }) >= 3 * std::ssize(ratios);
}

}  // namespace

double median(const Trial& trial, std::size_t column) {
  std::vector<double> values;
  for (const Measurement& measurement : trial.repetitions) {
    if (measurement[column] > 0) values.push_back(measurement[column]);
  }
  return median_of(std::move(values));
}

double gain_of(const Trial& trial, const Trial& reference, std::span<const std::size_t> columns) {
  return 1 - std::exp(median_of(log_ratios(trial, reference, columns)));
}

Choice choose(std::span<const Trial> trials, std::size_t default_index, std::span<const std::size_t> columns) {
  const Trial& reference = trials[default_index];
  Choice best{.index = default_index, .gain = 0};
  const Trial* fastest = nullptr;  // The fastest trial, proven or not.
  double fastest_gain = 0;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    if (i == default_index || trials[i].repetitions.empty()) continue;
    const double gain = gain_of(trials[i], reference, columns);
    if (fastest == nullptr || gain > fastest_gain) {
      fastest = &trials[i];
      fastest_gain = gain;
    }
    const std::vector<double> ratios = log_ratios(trials[i], reference, columns);
    const bool is_proven = gain >= kGainMin && ratios.size() >= kRepetitionsMin && is_seen_often(ratios);
    if (is_proven && gain > best.gain) best = {i, gain, std::format("saves {} of the time", percent(gain))};
  }
  if (best.gain > 0) return best;
  if (fastest == nullptr) {
    best.reason = "kept: no alternative works here";
  } else if (fastest_gain <= 0) {
    best.reason = "kept: nothing is faster";
  } else if (fastest_gain < kGainMin) {
    best.reason = std::format("kept: {} gains only {}", fastest->name, percent(fastest_gain));
  } else if (fastest->repetitions.size() < kRepetitionsMin) {
    best.reason = std::format("kept: {} gains {}, but {} repetition(s) are too few: give more --seconds", fastest->name,
                              percent(fastest_gain), fastest->repetitions.size());
  } else {
    best.reason = std::format("kept: {} gains {} in the median, but not in three of four repetitions", fastest->name,
                              percent(fastest_gain));
  }
  return best;
}

Choice choose_lanes(std::span<const Trial> trials, std::size_t default_index) {
  constexpr std::size_t kBoth[] = {0, 1};
  constexpr std::size_t kTotal[] = {1};
  // Excluded lanes take part as if they had not been measured.
  std::vector<Trial> candidates(trials.begin(), trials.end());
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    const double slower = 1 - gain_of(candidates[i], candidates[0], kTotal);
    if (slower > kTotalFactorMax && candidates[i].repetitions.size() >= kRepetitionsMin) candidates[i].repetitions.clear();
  }
  if (candidates[default_index].repetitions.empty() && !trials[default_index].repetitions.empty()) {
    Choice other = choose(candidates, 0, kBoth);
    if (other.index == 0) other.reason = std::format("{} takes more than a quarter longer", trials[default_index].name);
    return other;
  }
  return choose(candidates, default_index, kBoth);
}

}  // namespace uma::umad
