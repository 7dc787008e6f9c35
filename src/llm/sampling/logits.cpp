#include "llm/sampling/logits.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/check.h"

namespace uma::llm {
namespace {

constexpr double kBinsPerUnit = kDepthBinsPerUnit;
constexpr double kDepthMax = static_cast<double>(kDepthBins - 1) / kBinsPerUnit;

// e^-(i / 32); the last one is 0. Computed from the series at 1/32, in long double so that the products are exact enough for a
// double.
consteval DepthBins powers() {
  long double ratio = 1;
  for (int i = 20; i > 0; --i) ratio = 1 - ratio / (static_cast<long double>(kBinsPerUnit) * i);
  DepthBins table{};
  long double value = 1;
  for (double& entry : table) {
    entry = static_cast<double>(value);
    value *= ratio;
  }
  table.back() = 0;
  return table;
}

constexpr DepthBins kPowers = powers();

// A depth as the nearest bin and the weight relative to that bin: their product is kPowers[bin()] * rest.
struct Place {
  double shifted;
  double rest;

  // Adding 1.5 * 2^52 leaves the nearest integer in the low bits of the double.
  static constexpr double kShift = 0x1.8p52;

  static Place of(double depth) {
    const double bounded = depth < kDepthMax ? depth : kDepthMax;  // Also for NaN.
    const double shifted = bounded * kBinsPerUnit + kShift;
    const double x = bounded - (shifted - kShift) / kBinsPerUnit;
    // The series of e^-x: |x| <= 1/64, so the first omitted term is below 3e-14.
    return {shifted, 1 - x * (1 - x * (1.0 / 2 - x * (1.0 / 6 - x * (1.0 / 24 - x * (1.0 / 120)))))};
  }
  [[nodiscard]] std::size_t bin() const { return std::bit_cast<std::uint64_t>(shifted) & 0xffff; }
};

// Calls add(place) for each logit, in order.
void for_each_place(std::span<const float> logits, float best, double scale, auto add) {
  // The arithmetic of a chunk comes first, in vectors, then its table look-ups.
  constexpr std::size_t kChunk = 16;
  std::array<double, kChunk> shifted, rests;
  std::size_t first = 0;
  for (; first + kChunk <= logits.size(); first += kChunk) {
    const auto chunk = logits.subspan(first).first<kChunk>();
    for (std::size_t i = 0; i < kChunk; ++i) {
      const Place place = Place::of(static_cast<double>(best - chunk[i]) * scale);
      shifted[i] = place.shifted;
      rests[i] = place.rest;
    }
    for (std::size_t i = 0; i < kChunk; ++i) add(Place{shifted[i], rests[i]});
  }
  for (; first < logits.size(); ++first) add(Place::of(static_cast<double>(best - logits[first]) * scale));
}

}  // namespace

bool are_sound(std::span<const float> logits) {
  constexpr std::uint32_t kInfinity = 0x7f800000;
  // Bits instead of bools, because the compiler does not vectorise comparisons of floats.
  std::uint32_t has_finite = 0;
  std::uint32_t has_unsound = 0;
  for (const float logit : logits) {
    const auto bits = std::bit_cast<std::uint32_t>(logit);
    const std::uint32_t magnitude = bits & ~(1u << 31);
    has_finite |= static_cast<std::uint32_t>(magnitude < kInfinity);
    has_unsound |= static_cast<std::uint32_t>(magnitude > kInfinity) | static_cast<std::uint32_t>(bits == kInfinity);
  }
  return has_finite != 0 && has_unsound == 0;
}

void block_maxima(std::span<const float> logits, std::size_t block_size, std::vector<float>& maxima) {
  // The number of maxima that fit into vector registers; a single maximum would force the order of the operations.
  constexpr std::size_t kLanes = 8;
  maxima.clear();
  std::size_t first = 0;
  for (; first + block_size <= logits.size(); first += block_size) {
    const std::span<const float> block = logits.subspan(first, block_size);
    std::array<float, kLanes> best;
    best.fill(kNegativeInfinity);
    for (std::size_t i = 0; i < block_size; i += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane)
        best[lane] = block[i + lane] > best[lane] ? block[i + lane] : best[lane];
    }
    maxima.push_back(*std::ranges::max_element(best));
  }
  if (first == logits.size()) return;
  float best = kNegativeInfinity;
  for (const float logit : logits.subspan(first)) best = logit > best ? logit : best;
  maxima.push_back(best);
}

double weight_at(double depth) {
  const Place place = Place::of(depth);
  return kPowers[place.bin()] * place.rest;
}

double sum_of_weights(std::span<const float> logits, float best, double scale) {
  double sum = 0;
  for_each_place(logits, best, scale, [&](const Place& place) { sum += kPowers[place.bin()] * place.rest; });
  return sum;
}

DepthBins weights_by_depth(std::span<const float> logits, float best) {
  DepthBins weights{};
  for_each_place(logits, best, 1, [&](const Place& place) { weights[place.bin()] += place.rest; });
  for (std::size_t i = 0; i < kDepthBins; ++i) weights[i] *= kPowers[i];
  return weights;
}

double logits_distance(std::span<const float> logits, std::span<const float> expected) {
  UMA_CHECK(!logits.empty() && logits.size() == expected.size());
  const auto count = static_cast<double>(expected.size());
  double sum = 0;
  double squares = 0;
  double differences = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (logits[i] == expected[i] && !std::isfinite(expected[i])) continue;  // A token that the model never generates.
    const double value = expected[i];
    const double difference = logits[i] - value;
    sum += value;
    squares += value * value;
    differences += difference * difference;
  }
  if (!std::isfinite(sum) || !std::isfinite(differences)) return std::numeric_limits<double>::infinity();
  if (differences == 0) return 0;
  const double variance = std::max(squares / count - sum / count * (sum / count), 1e-12);
  return std::sqrt(differences / count / variance);
}

}  // namespace uma::llm
