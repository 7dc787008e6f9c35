#include "pool/device_fit.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "llm/layer_fit.h"

namespace uma::pool {
namespace {

using Counts = std::vector<std::int32_t>;

std::int32_t sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), 0);
}

llm::DeviceOptions options_of(std::span<const RoomOnDevice> rooms, const Counts& counts) {
  llm::DeviceOptions options{.names = std::vector<std::string>(), .layers = sum(counts)};
  for (std::size_t i = 0; i < rooms.size(); ++i) {
    if (counts[i] == 0) continue;
    options.names->push_back(rooms[i].name);
    options.split.push_back(static_cast<float>(counts[i]));
  }
  return options;
}

// Fits the model to some devices by measuring, and correcting by the measurement what the devices need beside the layers.
class Fitter {
 public:
  Fitter(const llm::GgufHeader& header, const llm::DeviceOptions& wanted, const MeasureNeed& measure)
      : weights_(header.layer_weights()), wanted_(wanted), measure_(measure) {
    const auto all = static_cast<std::int32_t>(weights_.size());
    layers_max_ = std::min(wanted.layers.value_or(all), all);
  }
  [[nodiscard]] std::int32_t layers_max() const { return layers_max_; }
  // Whether the weights of all layers that are wanted have fewer bytes.
  [[nodiscard]] bool may_fit_whole(std::uint64_t bytes) const {
    return std::accumulate(weights_.end() - layers_max_, weights_.end(), std::uint64_t{0}) <= bytes;
  }

  // The best fit; nullopt: no layer fits.
  Expected<std::optional<DeviceFit>> fit(std::span<const RoomOnDevice> rooms) {
    std::vector<llm::DeviceRoom> devices;
    for (const RoomOnDevice& room : rooms) devices.push_back({.bytes = room.bytes});
    std::vector<std::uint64_t> layers = weights_;
    std::set<Counts> tried;
    std::optional<DeviceFit> best;
    std::int32_t layers_max = layers_max_;
    for (int i = 0; i < kTries; ++i) {
      const Counts counts = place(layers, devices, layers_max);
      if (sum(counts) == 0) break;
      if (!tried.insert(counts).second) {
        if (best) break;
        // What the devices need beside the layers changes with them: fewer layers are tried.
        layers_max = sum(counts) - 1;
        continue;
      }
      const llm::DeviceOptions options = options_of(rooms, counts);
      auto need = measure_(options);
      if (!need) return std::unexpected(need.error());
      const bool fits = is_within(*need, rooms);
      if (fits && (!best || *best->devices.layers < sum(counts))) best = {options, *need};
      if (best && *best->devices.layers == layers_max_) break;
      layers = with_cache(*need);
      correct(devices, rooms, layers, counts, *need);
    }
    return best;
  }

 private:
  static constexpr int kTries = 6;

  [[nodiscard]] Counts place(std::span<const std::uint64_t> layers, std::span<const llm::DeviceRoom> devices,
                             std::int32_t layers_max) const {
    if (wanted_.split.size() == devices.size()) return llm::fit_layers(layers, devices, layers_max, wanted_.split);
    return llm::fit_layers(layers, devices, layers_max);
  }
  static llm::DeviceBytes on_devices(const MemoryNeed& need) { return need.weights_on_devices + need.contexts_on_devices; }
  static bool is_within(const MemoryNeed& need, std::span<const RoomOnDevice> rooms) {
    const llm::DeviceBytes bytes = on_devices(need);
    return std::ranges::all_of(rooms, [&](const RoomOnDevice& room) { return bytes.of(room.name) <= room.bytes; });
  }
  // Weights, keys and values of each layer.
  [[nodiscard]] std::vector<std::uint64_t> with_cache(const MemoryNeed& need) const {
    std::vector<std::uint64_t> layers = weights_;
    for (std::size_t i = 0; i + 1 < layers.size(); ++i) layers[i] += need.cache / (layers.size() - 1);
    return layers;
  }
  // Sets what each device needs beside its layers.
  static void correct(std::vector<llm::DeviceRoom>& devices, std::span<const RoomOnDevice> rooms,
                      std::span<const std::uint64_t> layers, const Counts& counts, const MemoryNeed& need) {
    std::span<const std::uint64_t> rest = layers.last(static_cast<std::size_t>(sum(counts)));
    for (std::size_t i = 0; i < rooms.size(); ++i) {
      const auto own = rest.first(static_cast<std::size_t>(counts[i]));
      rest = rest.subspan(own.size());
      if (own.empty()) continue;
      const std::uint64_t known = std::accumulate(own.begin(), own.end(), std::uint64_t{0});
      const std::uint64_t taken = on_devices(need).of(rooms[i].name);
      devices[i].fixed = taken - std::min(taken, known);
    }
  }

  const std::vector<std::uint64_t> weights_;
  const llm::DeviceOptions& wanted_;
  const MeasureNeed& measure_;
  std::int32_t layers_max_ = 0;
};

}  // namespace

Expected<DeviceFit> fit_devices(const llm::GgufHeader& header, const llm::DeviceOptions& wanted,
                                std::span<const RoomOnDevice> rooms, const MeasureNeed& measure) {
  Fitter fitter(header, wanted, measure);
  std::vector<RoomOnDevice> alone(rooms.begin(), rooms.end());
  std::ranges::stable_sort(alone, [&](const RoomOnDevice& a, const RoomOnDevice& b) {
    return std::pair(a.name == wanted.main_device, a.bytes) > std::pair(b.name == wanted.main_device, b.bytes);
  });
  std::optional<DeviceFit> best;
  const auto try_on = [&](std::span<const RoomOnDevice> some) -> Expected<bool> {
    auto fit = fitter.fit(some);
    if (!fit) return std::unexpected(fit.error());
    if (*fit && (!best || *(*fit)->devices.layers > *best->devices.layers)) best = std::move(*fit);
    return best && *best->devices.layers == fitter.layers_max();
  };
  // A given split means several devices.
  if (wanted.split.empty() || rooms.size() == 1) {
    for (std::size_t i = 0; i < alone.size(); ++i) {
      if (rooms.size() > 1 && !fitter.may_fit_whole(alone[i].bytes)) continue;
      const auto is_done = try_on(std::span(alone).subspan(i, 1));
      if (!is_done) return std::unexpected(is_done.error());
      if (*is_done) return *std::move(best);
    }
  }
  if (rooms.size() > 1) {
    std::vector<RoomOnDevice> together(rooms.begin(), rooms.end());
    // The first one has the projectors. A given split names the devices in their order.
    if (wanted.split.empty()) {
      std::ranges::stable_partition(together, [&](const RoomOnDevice& room) { return room.name == wanted.main_device; });
    }
    if (const auto is_done = try_on(together); !is_done) return std::unexpected(is_done.error());
  }
  if (best) return *std::move(best);
  const llm::DeviceOptions none{.names = std::vector<std::string>()};
  auto need = measure(none);
  if (!need) return std::unexpected(need.error());
  return DeviceFit{none, *std::move(need)};
}

}  // namespace uma::pool
