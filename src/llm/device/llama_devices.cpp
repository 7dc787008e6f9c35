#include "llm/device/llama_devices.h"

#include <algorithm>
#include <format>
#include <span>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "llm/device/layer_fit.h"
#include "llm/device/lost_devices.h"
#include "llm/device/rpc_address.h"
#include "llm/llama_model.h"

namespace uma::llm {
namespace {

std::string_view backend_of(ggml_backend_dev_t device) {
  return ggml_backend_reg_name(ggml_backend_dev_backend_reg(device));
}

// Without the figures of its memory: asking for them may make a context of the driver, or ask another machine.
Device described(ggml_backend_dev_t device) {
  ggml_backend_dev_props props{};
  // The properties have memory beside them; only the hardware's id is wanted, which needs them all.
  if (takes_layers(kind_of(device))) ggml_backend_dev_get_props(device, &props);
  return {.name = ggml_backend_dev_name(device),
          .description = ggml_backend_dev_description(device),
          .backend = std::string(backend_of(device)),
          .hardware = props.device_id == nullptr ? "" : props.device_id,
          .kind = kind_of(device)};
}

// That of a lost device counts as none.
void ask_memory(ggml_backend_dev_t handle, Device& device) {
  if (LostDevices::of_process().contains(handle)) return;
  std::size_t free = 0;
  std::size_t total = 0;
  ggml_backend_dev_memory(handle, &free, &total);
  device.free = free;
  device.total = total;
}

}  // namespace

std::vector<ggml_backend_buffer_type_t> cpu_layouts() {
  auto* const cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (cpu == nullptr) return {};
  const auto list = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
      ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), "ggml_backend_dev_get_extra_bufts"));
  std::vector<ggml_backend_buffer_type_t> layouts;
  for (auto* next = list == nullptr ? nullptr : list(cpu); next != nullptr && *next != nullptr; ++next)
    layouts.push_back(*next);
  return layouts;
}

DeviceKind kind_of(ggml_backend_dev_t device) {
  switch (ggml_backend_dev_type(device)) {
    case GGML_BACKEND_DEVICE_TYPE_GPU:
      // Metal says so of GPUs that compute in the machine's memory. Its name was changed from the first to the second.
      return backend_of(device) == "Metal" || backend_of(device) == "MTL" ? DeviceKind::integrated_gpu : DeviceKind::gpu;
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

std::vector<Device> list_devices() {
  init_llama();
  std::vector<Device> devices;
  for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    auto* const handle = ggml_backend_dev_get(i);
    ask_memory(handle, devices.emplace_back(described(handle)));
  }
  return devices;
}

std::vector<DeviceMemory> gpu_memory() {
  init_llama();
  std::vector<DeviceMemory> memory;
  for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    auto* const handle = ggml_backend_dev_get(i);
    if (kind_of(handle) != DeviceKind::gpu) continue;
    Device device = described(handle);
    ask_memory(handle, device);
    memory.push_back({.name = device.name, .total = device.total, .free = device.free});
  }
  for (DeviceMemory& remote : rpc_memory()) memory.push_back(std::move(remote));
  return memory;
}

Expected<std::vector<Device>> devices_of(const DeviceOptions& options) {
  const auto chosen = ChosenDevices::of(options);
  if (!chosen) return std::unexpected(chosen.error());
  if (!chosen->left_out().empty()) log_warning("devices: {} is lost and left out", chosen->left_out());
  return chosen->used();
}

std::vector<std::int32_t> ChosenDevices::layers_of(std::int32_t layers_count) const {
  if (!are_used()) return {};
  const std::int32_t all = layers_count + 1;
  const std::vector<float> even(used_.size(), 1);
  return split_layers(std::min(layers_.value_or(all), all), split_.empty() ? even : std::span(split_).first(used_.size()));
}

DeviceBytes ChosenDevices::bytes_on(const std::function<std::uint64_t(const std::string& buffer)>& bytes_in) const {
  DeviceBytes bytes;
  for (std::size_t i = 0; i < used_.size(); ++i) {
    if (used_[i].kind != DeviceKind::gpu) continue;
    bytes.add(used_[i].name, bytes_in(ggml_backend_buft_name(ggml_backend_dev_buffer_type(handles_[i]))));
  }
  return bytes;
}

ggml_backend_dev_t ChosenDevices::first() const {
  const auto is_here = [](const Device& device) { return !is_rpc_name(device.name); };
  return handles_[static_cast<std::size_t>(std::ranges::find_if(used_, is_here) - used_.begin())];
}

Expected<DeviceNames> ChosenDevices::with_rpc_devices(const DeviceOptions& options, std::vector<Device>& all,
                                                      std::vector<ggml_backend_dev_t>& handles) {
  if (!options.names) return options.names;
  std::vector<std::string> names;
  for (const std::string& name : *options.names) {
    const auto remote = rpc_name_of(name);
    if (!remote) {
      names.push_back(name);
      continue;
    }
    if (options.layers == 0) continue;
    auto server = RpcServer::at(remote->address);
    if (!server) return std::unexpected(server.error());
    const std::size_t count = (*server)->devices().size();
    if (remote->device.value_or(0) >= count) {
      return fail(ErrorCode::model_load, std::format("devices: {}: the server has {} device(s), numbered from 0", name, count));
    }
    for (std::size_t i = remote->device.value_or(0); i < (remote->device ? *remote->device + 1 : count); ++i) {
      const Device& device = (*server)->devices()[i];
      if (std::ranges::contains(names, device.name)) {
        return fail(ErrorCode::model_load, std::format("devices: {} is named twice", device.name));
      }
      all.push_back(device);
      handles.push_back((*server)->handle(i));
      names.push_back(device.name);
    }
    rpc_servers_.add(*std::move(server));
  }
  return names;
}

Expected<ChosenDevices> ChosenDevices::of(const DeviceOptions& options) {
  init_llama();
  const LostDevices& lost = LostDevices::of_process();
  ChosenDevices chosen;
  chosen.layers_ = options.layers;
  chosen.experts_on_cpu_ = options.experts_on_cpu;
  std::vector<Device> all;
  std::vector<ggml_backend_dev_t> handles;
  for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    auto* const handle = ggml_backend_dev_get(i);
    if (!options.names && lost.contains(handle)) {
      chosen.left_out_ += std::format("{}{}", chosen.left_out_.empty() ? "" : ", ", ggml_backend_dev_name(handle));
      continue;
    }
    all.push_back(described(handle));
    handles.push_back(handle);
  }
  auto names = chosen.with_rpc_devices(options, all, handles);
  if (!names) return std::unexpected(names.error());
  const auto indices = choose_devices(all, *names);
  if (!indices) return fail(ErrorCode::model_load, indices.error());
  for (const std::size_t index : options.layers == 0 ? std::vector<std::size_t>() : *indices) {
    if (const auto story = lost.story_of(handles[index])) return fail(ErrorCode::model_load, "devices: " + *story);
    chosen.used_.push_back(all[index]);
    chosen.handles_.push_back(handles[index]);
  }
  // The library keeps one list of devices of a fixed length, and the CPU is in it.
  if (chosen.used_.size() >= llama_max_devices()) {
    return fail(ErrorCode::model_load, std::format("devices: at most {} can be used at once", llama_max_devices() - 1));
  }
  if (!chosen.used_.empty() && !options.split.empty() && options.split.size() != chosen.used_.size()) {
    return fail(ErrorCode::model_load,
                std::format("split: it has {} numbers, but there are {} devices", options.split.size(), chosen.used_.size()));
  }
  if (!chosen.used_.empty() && !options.main_device.empty() &&
      !std::ranges::contains(chosen.used_, options.main_device, &Device::name)) {
    return fail(ErrorCode::model_load,
                std::format("main_device: \"{}\" is none of the devices that the model may use", options.main_device));
  }
  chosen.handles_.push_back(nullptr);
  chosen.split_ = options.split;
  if (!chosen.split_.empty()) chosen.split_.resize(llama_max_devices());
  return chosen;
}

void ChosenDevices::apply(llama_model_params& params) {
  constexpr std::int32_t kAll = -1;
  params.devices = handles_.data();
  params.n_gpu_layers = are_used() ? layers_.value_or(kAll) : 0;
  if (!split_.empty()) params.tensor_split = split_.data();
  overrides_.clear();
  if (experts_on_cpu() > 0) {
    std::string layers = "0";
    for (std::int32_t layer = 1; layer < experts_on_cpu(); ++layer) layers += std::format("|{}", layer);
    experts_pattern_ = std::format(R"(^blk\.({})\..*_exps\.)", layers);
    overrides_.push_back({.pattern = experts_pattern_.c_str(), .buft = ggml_backend_cpu_buffer_type()});
  } else if (used_.size() > 1) {
    // Where a rule places tensors, the library does not compute several calls on several devices at once, for which it would
    // allocate up to ten times the memory for tensors of a computation (docs/decisions/0069). No tensor has such a name.
    overrides_.push_back({.pattern = "^$", .buft = ggml_backend_cpu_buffer_type()});
  }
  if (!overrides_.empty()) {
    overrides_.push_back({});
    params.tensor_buft_overrides = overrides_.data();
  }
}

}  // namespace uma::llm
