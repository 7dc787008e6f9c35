#include "llm/device/layer_fit.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace uma::llm {
namespace {

bool fits(std::span<const std::uint64_t> layers, const DeviceRoom& device, double share) {
  const std::uint64_t bytes = std::accumulate(layers.begin(), layers.end(), device.fixed);
  return static_cast<double>(bytes) <= share * static_cast<double>(device.bytes);
}

// Fills one device behind the other with `layers`, each up to a share of its room. Empty: they do not fit.
std::vector<std::int32_t> fill(std::span<const std::uint64_t> layers, std::span<const DeviceRoom> devices, double share) {
  std::vector<std::int32_t> counts;
  for (const DeviceRoom& device : devices) {
    std::size_t count = 0;
    while (count < layers.size() && fits(layers.first(count + 1), device, share)) ++count;
    counts.push_back(static_cast<std::int32_t>(count));
    layers = layers.subspan(count);
  }
  return layers.empty() ? counts : std::vector<std::int32_t>();
}

// Fills the devices, each up to the smallest share of its room with which all layers fit. Empty: they do not fit.
std::vector<std::int32_t> fill_evenly(std::span<const std::uint64_t> layers, std::span<const DeviceRoom> devices) {
  constexpr int kSteps = 24;
  std::vector<std::int32_t> best = fill(layers, devices, 1);
  double low = 0;
  double high = 1;
  for (int i = 0; i < kSteps && !best.empty(); ++i) {
    const double share = (low + high) / 2;
    auto counts = fill(layers, devices, share);
    (counts.empty() ? low : high) = share;
    if (!counts.empty()) best = std::move(counts);
  }
  return best;
}

// `place` returns the counts for some layers, or nothing if they do not fit.
template <class Place>
std::vector<std::int32_t> most_of(std::span<const std::uint64_t> layers, std::size_t devices, std::int32_t layers_max,
                                  const Place& place) {
  for (std::size_t count = std::min(layers.size(), static_cast<std::size_t>(std::max(0, layers_max))); count > 0; --count) {
    if (auto counts = place(layers.last(count)); !counts.empty()) return counts;
  }
  return std::vector<std::int32_t>(devices, 0);
}

}  // namespace

std::vector<std::int32_t> fit_layers(std::span<const std::uint64_t> layers, std::span<const DeviceRoom> devices,
                                     std::int32_t layers_max) {
  return most_of(layers, devices.size(), layers_max,
                 [&](std::span<const std::uint64_t> last) { return fill_evenly(last, devices); });
}

std::vector<std::int32_t> fit_layers(std::span<const std::uint64_t> layers, std::span<const DeviceRoom> devices,
                                     std::int32_t layers_max, std::span<const float> proportions) {
  return most_of(layers, devices.size(), layers_max, [&](std::span<const std::uint64_t> last) {
    auto counts = split_layers(static_cast<std::int32_t>(last.size()), proportions);
    for (std::size_t i = 0; i < devices.size(); ++i) {
      const auto count = static_cast<std::size_t>(counts[i]);
      if (count > 0 && !fits(last.first(count), devices[i], 1)) return std::vector<std::int32_t>();
      last = last.subspan(count);
    }
    return counts;
  });
}

std::vector<std::int32_t> split_layers(std::int32_t count, std::span<const float> proportions) {
  std::vector<float> ends(proportions.size());
  std::partial_sum(proportions.begin(), proportions.end(), ends.begin());
  const float all = ends.back();
  for (float& end : ends) end /= all;
  std::vector<std::int32_t> counts(proportions.size(), 0);
  for (std::int32_t layer = 0; layer < count; ++layer) {
    const auto device = std::ranges::upper_bound(ends, static_cast<float>(layer) / static_cast<float>(count)) - ends.begin();
    ++counts[std::min(static_cast<std::size_t>(device), counts.size() - 1)];
  }
  return counts;
}

}  // namespace uma::llm
