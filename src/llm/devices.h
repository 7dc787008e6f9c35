// The devices that compute: the CPU, GPUs, accelerators, and those of other machines. Which of them a model uses.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace uma::llm {

enum class DeviceKind : std::uint8_t {
  cpu,
  gpu,             // With memory of its own.
  integrated_gpu,  // In the machine's memory.
  accelerator,     // Computes for the CPU, such as BLAS.
  group,           // Several devices together.
};
// Whether weights can be on such a device.
[[nodiscard]] constexpr bool takes_layers(DeviceKind kind) {
  return kind == DeviceKind::gpu || kind == DeviceKind::integrated_gpu;
}
// For example "integrated GPU".
[[nodiscard]] std::string_view name_of(DeviceKind kind);

struct Device {
  std::string name;         // As in DeviceOptions, such as "Vulkan0".
  std::string description;  // Of the hardware.
  std::string backend;      // The library's part that drives it, such as "Vulkan".
  DeviceKind kind = DeviceKind::cpu;
  std::uint64_t total = 0;  // Bytes of memory.
  std::uint64_t free = 0;
};

// All devices, in the library's order. Asks the drivers, which takes milliseconds.
[[nodiscard]] std::vector<Device> list_devices();

struct DeviceMemory {
  std::string name;
  std::uint64_t total = 0;
  std::uint64_t free = 0;
};

// Lists the GPUs with memory of their own, in the library's order; empty on a machine without one. Asks the drivers, which
// takes milliseconds.
[[nodiscard]] std::vector<DeviceMemory> gpu_memory();

// Names of devices. Nullopt: all GPUs, or all integrated GPUs if there are no others. Empty: none.
using DeviceNames = std::optional<std::vector<std::string>>;
// How many layers of a model are on devices, counted from its end; its output counts as the last one. Nullopt: all.
using DeviceLayers = std::optional<std::int32_t>;

// Which devices a model is loaded on, besides the CPU.
struct DeviceOptions {
  DeviceNames names{};
  DeviceLayers layers{};

  [[nodiscard]] bool are_used() const { return !(names && names->empty()) && layers != 0; }
  bool operator==(const DeviceOptions&) const = default;
};

// The names that a configuration gives: `auto`, `none`, or names separated by spaces, line ends or commas. The error is what
// was expected.
[[nodiscard]] std::expected<DeviceNames, std::string> device_names_of(std::string_view text);
// The inverse, with one name a line.
[[nodiscard]] std::string device_names_text(const DeviceNames& names);

inline constexpr std::int32_t kDeviceLayersMax = 10'000;
// The layers that a configuration gives: `auto`, or a number up to kDeviceLayersMax. The error is what was expected.
[[nodiscard]] std::expected<DeviceLayers, std::string> device_layers_of(std::string_view text);
// The inverse.
[[nodiscard]] std::string device_layers_text(DeviceLayers layers);

}  // namespace uma::llm
