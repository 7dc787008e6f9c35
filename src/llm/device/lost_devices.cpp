#include "llm/device/lost_devices.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <format>
#include <memory>
#include <new>
#include <vector>

#include <ggml.h>

#include "base/log.h"
#include "llm/device/devices.h"

namespace uma::llm {
namespace {

// Vulkan's exceptions say so.
bool names_a_loss(std::string_view message) {
  return message.contains("ErrorDeviceLost");
}

// Whether the device is in this machine. Those of others can come back, and the library ends the process when it asks one that
// is gone.
bool is_here(ggml_backend_dev_t device) {
  return std::string_view(ggml_backend_reg_name(ggml_backend_dev_backend_reg(device))) != "RPC";
}

// Whether the device still keeps a few bytes. One without free memory works, although it cannot.
bool keeps_bytes(ggml_backend_dev_t device) {
  constexpr std::array<std::int32_t, 4> kSent{1, -2, 3, -4};
  std::array<std::int32_t, 4> kept{};
  try {
    const std::unique_ptr<ggml_context, decltype(&ggml_free)> context(
        ggml_init({.mem_size = 2 * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true}), ggml_free);
    ggml_tensor* const tensor = ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, kSent.size());
    ggml_backend_buffer* const buffer =
        ggml_backend_alloc_ctx_tensors_from_buft(context.get(), ggml_backend_dev_buffer_type(device));
    if (buffer == nullptr) return true;
    ggml_backend_tensor_set(tensor, kSent.data(), 0, sizeof kSent);
    ggml_backend_tensor_get(tensor, kept.data(), 0, sizeof kept);
    ggml_backend_buffer_free(buffer);  // Stays, on a device that is lost.
  } catch (const std::bad_alloc&) {
    return true;
  } catch (const std::exception& error) {
    return std::string_view(error.what()).contains("ErrorOutOf");  // OfDeviceMemory or OfHostMemory.
  } catch (...) {
    return false;
  }
  return kept == kSent;
}

}  // namespace

bool has_lost_device() {
  return LostDevices::of_process().has_any();
}

LostDevices& LostDevices::of_process() {
  static LostDevices devices;
  return devices;
}

void LostDevices::add(ggml_backend_dev_t device, std::string_view reason) {
  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  std::string story = std::format("the device {} was lost at {:%T} UTC ({}): restart umad to use it again",
                                  ggml_backend_dev_name(device), now, reason);
  const MutexLock lock(mutex_);
  const auto [known, is_new] = stories_.try_emplace(device, std::move(story));
  has_any_.store(true);
  if (is_new) log_error("{}", known->second);
}

bool LostDevices::contain_any(DeviceList devices) const {
  if (devices.empty() || !has_any_.load()) return false;
  const MutexLock lock(mutex_);
  return std::ranges::any_of(devices,
                             [this](ggml_backend_dev_t device) REQUIRES_LOCK(mutex_) { return stories_.contains(device); });
}

std::optional<std::string> LostDevices::story_of(ggml_backend_dev_t device) const {
  const MutexLock lock(mutex_);
  const auto found = stories_.find(device);
  return found == stories_.end() ? std::nullopt : std::optional(found->second);
}

bool find_lost(DeviceList devices, std::string_view message) {
  LostDevices& lost = LostDevices::of_process();
  if (lost.contain_any(devices)) return true;
  for (ggml_backend_dev_t device : devices) {
    if (is_here(device) && !keeps_bytes(device)) lost.add(device, message.empty() ? "it does not answer" : message);
  }
  // The message does not say which one it is.
  if (names_a_loss(message) && !lost.contain_any(devices)) {
    for (ggml_backend_dev_t device : devices) {
      if (is_here(device)) lost.add(device, message);
    }
  }
  return lost.contain_any(devices);
}

Error loss_error(DeviceList devices, ErrorCode code) {
  for (ggml_backend_dev_t device : devices) {
    if (auto story = LostDevices::of_process().story_of(device)) return {code, std::move(*story)};
  }
  return {code, "a device was lost"};
}

}  // namespace uma::llm
