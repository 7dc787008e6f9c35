#include "umad/tune_choice.h"

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
  for (const Figures& figures : trial.repetitions) {
    if (figures[column] > 0) values.push_back(figures[column]);
  }
  return median_of(std::move(values));
}

double gain_of(const Trial& trial, const Trial& reference, std::span<const std::size_t> columns) {
  return 1 - std::exp(median_of(log_ratios(trial, reference, columns)));
}

Choice choose(std::span<const Trial> trials, std::size_t default_index, std::span<const std::size_t> columns) {
  const Trial& reference = trials[default_index];
  const Trial* best = nullptr;
  double best_gain = 0;
  for (const Trial& trial : trials) {
    if (&trial == &reference || trial.repetitions.empty()) continue;
    const double gain = gain_of(trial, reference, columns);
    if (best == nullptr || gain > best_gain) {
      best = &trial;
      best_gain = gain;
    }
  }
  if (best == nullptr) return {default_index, 0, "kept: nothing else can be had"};
  if (best_gain <= 0) return {default_index, 0, "kept: nothing is faster"};
  if (best_gain < kGainMin) {
    return {default_index, 0, std::format("kept: {} gains only {}", best->name, percent(best_gain))};
  }
  const std::vector<double> ratios = log_ratios(*best, reference, columns);
  if (ratios.size() < kRepetitionsMin) {
    return {default_index, 0,
            std::format("kept: {} gains {}, but {} repetition(s) prove nothing: give it more --seconds", best->name,
                        percent(best_gain), ratios.size())};
  }
  if (!is_seen_often(ratios)) {
    return {
        default_index, 0,
        std::format("kept: {} gains {} in the median, but not in three of four repetitions", best->name, percent(best_gain))};
  }
  return {static_cast<std::size_t>(best - trials.data()), best_gain, std::format("saves {} of the time", percent(best_gain))};
}

Choice choose_lanes(std::span<const Trial> trials, std::size_t default_index) {
  constexpr std::size_t kBoth[] = {0, 1};
  constexpr std::size_t kTotal[] = {1};
  // Lanes that are out of the question take part as if they had not been measured.
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
