#include "llm/llama_devices.h"

#include <algorithm>
#include <format>
#include <set>
#include <string_view>

#include "llm/llama_model.h"

namespace uma::llm {
namespace {

DeviceKind kind_of(ggml_backend_dev_t device) {
  switch (ggml_backend_dev_type(device)) {
    case GGML_BACKEND_DEVICE_TYPE_GPU:
      return DeviceKind::gpu;
    case GGML_BACKEND_DEVICE_TYPE_IGPU:
      return DeviceKind::integrated_gpu;
    case GGML_BACKEND_DEVICE_TYPE_ACCEL:
      return DeviceKind::accelerator;
    case GGML_BACKEND_DEVICE_TYPE_META:
      return DeviceKind::group;
    case GGML_BACKEND_DEVICE_TYPE_CPU:
      break;
  }
  return DeviceKind::cpu;
}

std::string joined(const auto& texts, std::string_view separator) {
  std::string all;
  for (const std::string& text : texts) all += std::format("{}{}", all.empty() ? "" : separator, text);
  return all;
}

// The devices that a name can mean, for an error message.
std::string known_names() {
  std::vector<std::string> names;
  for (const Device& device : list_devices()) {
    if (takes_layers(device.kind)) names.push_back(device.name);
  }
  return names.empty() ? "this machine has none" : std::format("known: {}", joined(names, ", "));
}

}  // namespace

std::vector<Device> list_devices() {
  init_llama();
  std::vector<Device> devices;
  for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    auto* const device = ggml_backend_dev_get(i);
    Device& listed = devices.emplace_back();
    listed.name = ggml_backend_dev_name(device);
    listed.description = ggml_backend_dev_description(device);
    listed.backend = ggml_backend_reg_name(ggml_backend_dev_backend_reg(device));
    listed.kind = kind_of(device);
    std::size_t free = 0;
    std::size_t total = 0;
    ggml_backend_dev_memory(device, &free, &total);
    listed.free = free;
    listed.total = total;
  }
  return devices;
}

std::vector<DeviceMemory> gpu_memory() {
  std::vector<DeviceMemory> memory;
  for (const Device& device : list_devices()) {
    if (device.kind == DeviceKind::gpu) memory.push_back({.name = device.name, .total = device.total, .free = device.free});
  }
  return memory;
}

Expected<ChosenDevices> ChosenDevices::of(const DeviceOptions& options) {
  init_llama();
  ChosenDevices chosen;
  chosen.layers_ = options.are_used() ? options.layers.value_or(-1) : 0;
  if (options.are_used() && !options.names) return chosen;
  for (const std::string& name : options.are_used() ? *options.names : std::vector<std::string>()) {
    auto* const device = ggml_backend_dev_by_name(name.c_str());
    if (device == nullptr || !takes_layers(kind_of(device))) {
      return fail(ErrorCode::model_load,
                  std::format("devices: no GPU is called \"{}\"; {} (umad devices lists them)", name, known_names()));
    }
    chosen.devices_.push_back(device);
  }
  chosen.devices_.push_back(nullptr);
  return chosen;
}

void ChosenDevices::apply(llama_model_params& params) {
  if (!devices_.empty()) params.devices = devices_.data();
  params.n_gpu_layers = layers_;
}

ggml_backend_dev_t ChosenDevices::first() const {
  return devices_.empty() ? nullptr : devices_.front();
}

Placement placement_of(const DeviceOptions& options, std::int32_t layers_count) {
  if (!options.are_used()) return {};
  const std::vector<Device> devices = list_devices();
  const bool has_gpu = std::ranges::contains(devices, DeviceKind::gpu, &Device::kind);
  const auto is_used = [&](const Device& device) {
    if (options.names) return std::ranges::contains(*options.names, device.name);
    return device.kind == (has_gpu ? DeviceKind::gpu : DeviceKind::integrated_gpu);
  };
  std::vector<std::string> names = options.names.value_or(std::vector<std::string>());
  std::set<std::string> backends;
  for (const Device& device : devices) {
    if (!is_used(device)) continue;
    if (!options.names) names.push_back(device.name);
    backends.insert(device.backend);
  }
  if (names.empty()) return {};
  const std::int32_t all = layers_count + 1;
  const std::int32_t layers = std::min(options.layers.value_or(all), all);
  return {
      .devices = std::format("{}on {}", layers < all ? std::format("{} of {} layers ", layers, all) : "", joined(names, ", ")),
      .identity = std::format("{}{}", joined(backends, "+"), layers < all ? std::format(" {}/{}", layers, all) : "")};
}

}  // namespace uma::llm
