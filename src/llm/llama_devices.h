// Devices as the library names them. Internal to llm, because it includes the library's headers.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ggml-backend.h>
#include <llama.h>

#include "core/error.h"
#include "llm/device_bytes.h"
#include "llm/devices.h"
#include "llm/lost_devices.h"

namespace uma::llm {

// The devices of a model that is loaded, as the library's parameters. Lives as long as the model, because the library keeps
// pointers to it.
class ChosenDevices {
 public:
  // Without names, devices that are lost are left out. Errors: E_MODEL_002 for a device that does not exist, takes no layers or
  // is lost.
  [[nodiscard]] static Expected<ChosenDevices> of(const DeviceOptions& options);
  void apply(llama_model_params& params);
  [[nodiscard]] DeviceList handles() const { return DeviceList(handles_).first(used_.size()); }
  // Of a projector: the first of them; null: the CPU.
  [[nodiscard]] ggml_backend_dev_t first() const { return handles_.front(); }
  [[nodiscard]] bool are_used() const { return !used_.empty(); }
  // The layers of each of used(), if a model has `layers_count` layers without its output. Without a given split the library
  // divides them by the free memory of the moment, and this is only an estimate.
  [[nodiscard]] std::vector<std::int32_t> layers_of(std::int32_t layers_count) const;
  // Bytes in the buffers of devices that have memory of their own; `bytes_in` returns those in buffers with a name.
  [[nodiscard]] DeviceBytes bytes_on(const std::function<std::uint64_t(const std::string& buffer)>& bytes_in) const;
  // The names of the lost devices that were left out, for people; empty: none.
  [[nodiscard]] const std::string& left_out() const { return left_out_; }
  // The same devices, without the figures of their memory; empty: none.
  [[nodiscard]] const std::vector<Device>& used() const { return used_; }

 private:
  std::vector<Device> used_;
  std::vector<ggml_backend_dev_t> handles_;  // Of the same, and null at the end.
  DeviceLayers layers_;
  std::vector<float> split_;  // One for each of the most devices that the library has; empty: not given.
  std::array<llama_model_tensor_buft_override, 2> overrides_{};
  std::string left_out_;
};

}  // namespace uma::llm
