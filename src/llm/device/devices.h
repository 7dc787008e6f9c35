// The devices that compute: the CPU, GPUs, accelerators, and those of other machines. Which of them a model uses.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

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
  std::string name;         // Name in DeviceOptions, such as "Vulkan0".
  std::string description;  // Description of the hardware.
  std::string backend;      // The library's part that drives it, such as "Vulkan".
  std::string hardware;     // Id, such as a PCI address, equal where two backends drive the same hardware; empty: not known.
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

// Lists the GPUs with memory of their own, in the library's order, and the devices of RPC servers that were used and are not
// lost; empty on a machine without one. Asks the drivers, which takes milliseconds.
[[nodiscard]] std::vector<DeviceMemory> gpu_memory();

// A device that a context or an encoder was made on.
struct DeviceBusy {
  std::string name;
  double busy_s = 0;     // In which at least one call used it, since the process began.
  double ratio = 0;      // Busy time as a share of the last 5 s or more.
  bool is_used = false;  // One of them exists.
};
[[nodiscard]] std::vector<DeviceBusy> device_busy();

// Whether a GPU of this process is lost. Its driver may crash when the process ends in the ordinary way.
[[nodiscard]] bool has_lost_device();

// How long an RPC server may be silent while it has something to answer, before it counts as lost. For later loads.
inline constexpr std::chrono::seconds kRpcAnswerLimit{60};
void set_rpc_answer_limit(std::chrono::milliseconds limit);

// Names of devices, and RPC servers as rpc://HOST:PORT, which stand for all devices of the server. Nullopt: every GPU once, or
// the first integrated GPU if there are no others. Empty: none.
using DeviceNames = std::optional<std::vector<std::string>>;
// How many layers of a model are on devices at most, counted from its end; its output counts as the last one. Nullopt: all.
using DeviceLayers = std::optional<std::int32_t>;

// The proportions in which several devices have a model's layers, in the order of their names. Empty: not given.
using DeviceSplit = std::vector<float>;

// Which devices a model is loaded on, besides the CPU.
struct DeviceOptions {
  DeviceNames names{};
  DeviceLayers layers{};
  DeviceSplit split{};
  // The device that has a model alone if it fits there; empty: any.
  std::string main_device{};
  // The experts of a mixture's first layers, so many, are on the CPU.
  std::int32_t experts_on_cpu = 0;

  [[nodiscard]] bool are_used() const { return !(names && names->empty()) && layers != 0; }
  // Whether they are used and named: automatic ones may not exist.
  [[nodiscard]] bool are_named() const { return names && are_used(); }
  bool operator==(const DeviceOptions&) const = default;
};

// The chosen ones of `all`, as indices. Names count letter by letter. The error names the first that does not exist or takes no
// layers.
[[nodiscard]] std::expected<std::vector<std::size_t>, std::string> choose_devices(const std::vector<Device>& all,
                                                                                  const DeviceNames& names);

// The devices that a model with these options is loaded on, without the figures of their memory. Errors: E_MODEL_002 for a
// device that does not exist or takes no layers.
[[nodiscard]] Expected<std::vector<Device>> devices_of(const DeviceOptions& options);

// Where a loaded model's layers are besides the CPU.
struct Placement {
  std::string devices;  // For people, "on Vulkan0" or "2 of 5 layers on Vulkan0"; empty: all layers are on the CPU.
  std::string
      identity;  // Differs where the bits of results may: the hardware and its backends in order, and the number of layers.
};
// `counts`: the layers of each device. `layers_count`: those of the model without its output. `experts_on_cpu`: as in
// DeviceOptions.
[[nodiscard]] Placement placement_of(const std::vector<Device>& used, const std::vector<std::int32_t>& counts,
                                     std::int32_t layers_count, std::int32_t experts_on_cpu = 0);

// The names that a configuration gives: `auto`, `none`, or names separated by spaces, line ends or commas. The error is what
// was expected.
[[nodiscard]] std::expected<DeviceNames, std::string> device_names_of(std::string_view text);
// The inverse, with one name a line.
[[nodiscard]] std::string device_names_text(const DeviceNames& names);

// The proportions that a configuration gives: `auto`, or numbers from 0 on, not all 0, separated as names are. The error is
// what was expected.
[[nodiscard]] std::expected<DeviceSplit, std::string> device_split_of(std::string_view text);
// The inverse.
[[nodiscard]] std::string device_split_text(const DeviceSplit& split);

// The device that a configuration gives for DeviceOptions::main_device: `auto` or a name. The error is what was expected.
[[nodiscard]] std::expected<std::string, std::string> main_device_of(std::string_view text);
// The inverse.
[[nodiscard]] std::string main_device_text(const std::string& name);

inline constexpr std::int32_t kDeviceLayersMax = 10'000;
// The layers that a configuration gives: `auto`, or a number up to kDeviceLayersMax. The error is what was expected.
[[nodiscard]] std::expected<DeviceLayers, std::string> device_layers_of(std::string_view text);
// The inverse.
[[nodiscard]] std::string device_layers_text(DeviceLayers layers);

}  // namespace uma::llm
