// Devices that a driver has given up, after a fault of the hardware or a computation that took too long. Internal to llm,
// because it includes the library's header.
#pragma once

#include <atomic>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <ggml-backend.h>

#include "base/mutex.h"
#include "core/error.h"
#include "llm/llama_guard.h"

namespace uma::llm {

using DeviceList = std::span<const ggml_backend_dev_t>;

// The lost devices of this process. A GPU stays lost until the process ends, because its driver cannot be started anew in it.
// Any thread.
class LostDevices {
 public:
  static LostDevices& of_process();

  // The device computes no more. Logs it once.
  void add(ggml_backend_dev_t device, std::string_view reason);
  [[nodiscard]] bool has_any() const { return has_any_.load(); }
  [[nodiscard]] bool contains(ggml_backend_dev_t device) const { return contain_any({&device, 1}); }
  [[nodiscard]] bool contain_any(DeviceList devices) const;
  // For people: "the device Vulkan0 was lost at 12:30:01 (ErrorDeviceLost): restart umad to use it again". Nullopt: it is not
  // lost.
  [[nodiscard]] std::optional<std::string> story_of(ggml_backend_dev_t device) const;

 private:
  std::atomic<bool> has_any_{false};
  mutable Mutex mutex_;
  std::map<ggml_backend_dev_t, std::string> stories_ GUARDED_BY(mutex_);
};

// After a call on these devices has failed with this message: tries each GPU of this machine and notes those that are lost.
// Returns whether one is. Takes less than a millisecond for a device that works.
[[nodiscard]] bool find_lost(DeviceList devices, std::string_view message);

// The error of a call on these devices, one of which is lost.
[[nodiscard]] Error loss_error(DeviceList devices, ErrorCode code);

// Calls guarded() for a call on these devices: none is made once one of them is lost, and after an error with `code` they are
// tried.
template <class Call>
auto guarded_on(DeviceList devices, ErrorCode code, const char* doing, Call&& call) -> decltype(call()) {
  if (LostDevices::of_process().contain_any(devices)) return std::unexpected(loss_error(devices, code));
  auto done = guarded(code, doing, std::forward<Call>(call));
  if (!done && done.error().code == code && find_lost(devices, done.error().message))
    return std::unexpected(loss_error(devices, code));
  return done;
}

}  // namespace uma::llm
