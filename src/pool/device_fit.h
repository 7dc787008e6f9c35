// Chooses how many layers of a model go onto which device, by measuring what a load would take there.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "llm/device/devices.h"
#include "llm/file/gguf_header.h"
#include "pool/memory_need.h"

namespace uma::pool {

struct RoomOnDevice {
  std::string name;
  std::uint64_t bytes = 0;
  bool operator==(const RoomOnDevice&) const = default;
};

struct DeviceFit {
  llm::DeviceOptions devices;  // With names, layers, split and experts_on_cpu.
  MemoryNeed need;

  // Greater: more is on devices.
  [[nodiscard]] std::pair<std::int32_t, std::int32_t> placed() const {
    return {devices.layers.value_or(0), -devices.experts_on_cpu};
  }
};

// Measures the need of the load if its model is on these devices.
using MeasureNeed = std::function<Expected<MemoryNeed>(const llm::DeviceOptions& devices)>;

// Returns the devices with the most layers for which every device's need is within its room, after one measurement if
// the model fits as a whole, else after at most six for each try. A mixture's experts stay on the CPU, as many as must, before
// whole layers do. One device alone is taken before several,
// `wanted.main_device` first, else the one with the most room. `rooms` are the devices that `wanted` means and that have memory
// of their own, in their order; `wanted.layers` is the most, and `wanted.split` is kept. If nothing fits, the result has no
// devices.
[[nodiscard]] Expected<DeviceFit> fit_devices(const llm::GgufHeader& header, const llm::DeviceOptions& wanted,
                                              std::span<const RoomOnDevice> rooms, const MeasureNeed& measure);

}  // namespace uma::pool
