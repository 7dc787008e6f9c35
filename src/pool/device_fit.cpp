#include "pool/device_fit.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "llm/device/layer_fit.h"

namespace uma::pool {
namespace {

using Counts = std::vector<std::int32_t>;

std::int32_t sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), 0);
}

// Where layers are to be.
struct Plan {
  Counts counts;                    // Layers of each device.
  std::int32_t experts_on_cpu = 0;  // See llm::DeviceOptions.
  auto operator<=>(const Plan&) const = default;
};

llm::DeviceOptions options_of(std::span<const RoomOnDevice> rooms, const Plan& plan) {
  llm::DeviceOptions options{
      .names = std::vector<std::string>(), .layers = sum(plan.counts), .experts_on_cpu = plan.experts_on_cpu};
  for (std::size_t i = 0; i < rooms.size(); ++i) {
    if (plan.counts[i] == 0) continue;
    options.names->push_back(rooms[i].name);
    options.split.push_back(static_cast<float>(plan.counts[i]));
  }
  return options;
}

// Fits the model to some devices by measuring, and correcting by the measurement what the devices need beside the layers.
class Fitter {
 public:
  Fitter(const llm::GgufHeader& header, const llm::DeviceOptions& wanted, const MeasureNeed& measure)
      : header_(header), wanted_(wanted), measure_(measure) {
    const auto all = static_cast<std::int32_t>(header.block_count) + 1;
    layers_max_ = std::min(wanted.layers.value_or(all), all);
  }
  // Whether all that is wanted is on devices.
  [[nodiscard]] bool is_whole(const DeviceFit& fit) const { return fit.placed() == std::pair(layers_max_, 0); }
  // Whether the weights of all layers that are wanted have fewer bytes.
  [[nodiscard]] bool may_fit_whole(std::uint64_t bytes) const {
    const std::vector<std::uint64_t> weights = header_.layer_weights();
    return std::accumulate(weights.end() - layers_max_, weights.end(), std::uint64_t{0}) <= bytes;
  }

  // The best fit; nullopt: no layer fits.
  Expected<std::optional<DeviceFit>> fit(std::span<const RoomOnDevice> rooms) {
    std::vector<llm::DeviceRoom> devices;
    for (const RoomOnDevice& room : rooms) devices.push_back({.bytes = room.bytes});
    std::set<Plan> tried;
    std::optional<DeviceFit> best;
    std::uint64_t layer_cache = 0;
    std::int32_t layers_max = layers_max_;
    std::int32_t experts_min = 0;
    for (int i = 0; i < kTries; ++i) {
      const Plan plan = place(devices, layer_cache, layers_max, experts_min);
      if (sum(plan.counts) == 0) break;
      if (!tried.insert(plan).second) {
        if (best) break;
        // The need of the devices beside the layers changes with them: less is tried.
        if (plan.experts_on_cpu > 0 && plan.experts_on_cpu < header_.block_count) {
          experts_min = plan.experts_on_cpu + 1;
        } else {
          layers_max = sum(plan.counts) - 1;
        }
        continue;
      }
      auto need = measure_(options_of(rooms, plan));
      if (!need) return std::unexpected(need.error());
      DeviceFit fit{options_of(rooms, plan), *std::move(need)};
      layer_cache = fit.need.cache / static_cast<std::uint64_t>(std::max<std::int64_t>(1, header_.block_count));
      correct(devices, rooms, plan, layer_cache, fit.need);
      if (is_within(fit.need, rooms) && (!best || best->placed() < fit.placed())) best = std::move(fit);
      if (best && is_whole(*best)) break;
    }
    return best;
  }

 private:
  static constexpr int kTries = 6;

  // Places as many layers as fit. Experts stay on the CPU before whole layers do: they have most of a mixture's weights, but a
  // token needs few of them. As many experts as fit are on the devices, too. A given split says how much each device gets.
  [[nodiscard]] Plan place(std::span<const llm::DeviceRoom> devices, std::uint64_t layer_cache, std::int32_t layers_max,
                           std::int32_t experts_min) const {
    const auto blocks = static_cast<std::int32_t>(header_.block_count);
    const bool moves_experts = header_.expert_bytes > 0 && (devices.size() == 1 || wanted_.split.empty());
    const std::int32_t most = moves_experts ? sum(place_layers(devices, layer_cache, layers_max, blocks)) : 0;
    for (std::int32_t without = experts_min; without < blocks; ++without) {
      Plan plan{.counts = place_layers(devices, layer_cache, layers_max, without), .experts_on_cpu = without};
      if (sum(plan.counts) >= most) return plan;
    }
    return {.counts = place_layers(devices, layer_cache, layers_max, blocks), .experts_on_cpu = moves_experts ? blocks : 0};
  }
  [[nodiscard]] Counts place_layers(std::span<const llm::DeviceRoom> devices, std::uint64_t layer_cache,
                                    std::int32_t layers_max, std::int32_t experts_on_cpu) const {
    const std::vector<std::uint64_t> layers = bytes_of_layers(layer_cache, experts_on_cpu);
    if (wanted_.split.size() == devices.size()) return llm::fit_layers(layers, devices, layers_max, wanted_.split);
    return llm::fit_layers(layers, devices, layers_max);
  }
  // Weights, keys and values of each layer.
  [[nodiscard]] std::vector<std::uint64_t> bytes_of_layers(std::uint64_t layer_cache, std::int32_t experts_on_cpu) const {
    std::vector<std::uint64_t> layers = header_.layer_weights(experts_on_cpu);
    for (std::size_t i = 0; i + 1 < layers.size(); ++i) layers[i] += layer_cache;
    return layers;
  }
  static llm::DeviceBytes on_devices(const MemoryNeed& need) { return need.weights_on_devices + need.contexts_on_devices; }
  static bool is_within(const MemoryNeed& need, std::span<const RoomOnDevice> rooms) {
    const llm::DeviceBytes bytes = on_devices(need);
    return std::ranges::all_of(rooms, [&](const RoomOnDevice& room) { return bytes.of(room.name) <= room.bytes; });
  }
  // Sets what each device needs beside its layers.
  void correct(std::vector<llm::DeviceRoom>& devices, std::span<const RoomOnDevice> rooms, const Plan& plan,
               std::uint64_t layer_cache, const MemoryNeed& need) const {
    const std::vector<std::uint64_t> layers = bytes_of_layers(layer_cache, plan.experts_on_cpu);
    std::span<const std::uint64_t> rest = std::span(layers).last(static_cast<std::size_t>(sum(plan.counts)));
    for (std::size_t i = 0; i < rooms.size(); ++i) {
      const auto own = rest.first(static_cast<std::size_t>(plan.counts[i]));
      rest = rest.subspan(own.size());
      if (own.empty()) continue;
      const std::uint64_t known = std::accumulate(own.begin(), own.end(), std::uint64_t{0});
      const std::uint64_t taken = on_devices(need).of(rooms[i].name);
      devices[i].fixed = taken - std::min(taken, known);
    }
  }

  const llm::GgufHeader& header_;
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
    if (*fit && (!best || best->placed() < (*fit)->placed())) best = std::move(*fit);
    return best && fitter.is_whole(*best);
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
