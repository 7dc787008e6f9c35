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
#include "llm/device/device_bytes.h"
#include "llm/device/devices.h"
#include "llm/device/llama_rpc.h"
#include "llm/device/lost_devices.h"

namespace uma::llm {

[[nodiscard]] DeviceKind kind_of(ggml_backend_dev_t device);

// Layouts of weights in which the CPU multiplies some matrices faster.
[[nodiscard]] std::vector<ggml_backend_buffer_type_t> cpu_layouts();

// The devices of a model that is loaded, as the library's parameters. Lives as long as the model, because the library keeps
// pointers to it.
class ChosenDevices {
 public:
  // Without names, devices that are lost are left out. Connects to the RPC servers among the names. Errors: E_MODEL_002 for a
  // device that does not exist, takes no layers or is lost, or for a server that cannot be used.
  [[nodiscard]] static Expected<ChosenDevices> of(const DeviceOptions& options);
  void apply(llama_model_params& params);
  [[nodiscard]] DeviceList handles() const { return DeviceList(handles_).first(used_.size()); }
  // The device for a projector or a picture model: the first of used() that is in this machine; null: the CPU.
  [[nodiscard]] ggml_backend_dev_t first() const;
  [[nodiscard]] bool are_used() const { return !used_.empty(); }
  [[nodiscard]] std::int32_t experts_on_cpu() const { return are_used() ? experts_on_cpu_ : 0; }
  // The layers of each of used(), if a model has `layers_count` layers without its output. Without a given split the library
  // divides them by the free memory of the moment, and this is only an estimate.
  [[nodiscard]] std::vector<std::int32_t> layers_of(std::int32_t layers_count) const;
  // Bytes in the buffers of devices that have memory of their own; `bytes_in` returns those in buffers with a name.
  [[nodiscard]] DeviceBytes bytes_on(const std::function<std::uint64_t(const std::string& buffer)>& bytes_in) const;
  // The names of the lost devices that were left out, for people; empty: none.
  [[nodiscard]] const std::string& left_out() const { return left_out_; }
  // The devices of the model, without the figures of their memory; empty: none.
  [[nodiscard]] const std::vector<Device>& used() const { return used_; }
  // The servers of the RPC devices among them.
  [[nodiscard]] const RpcServers& rpc_servers() const { return rpc_servers_; }
  // A device is lost: nothing that was computed since then may be used.
  [[nodiscard]] bool are_lost() const { return rpc_servers_.are_lost(); }

 private:
  // Connects to the RPC servers among the names and adds their devices to `all` and `handles`. Returns the names with those of
  // the devices instead of their servers'.
  [[nodiscard]] Expected<DeviceNames> with_rpc_devices(const DeviceOptions& options, std::vector<Device>& all,
                                                       std::vector<ggml_backend_dev_t>& handles);

  std::vector<Device> used_;
  std::vector<ggml_backend_dev_t> handles_;  // The handles of used_, and null at the end.
  DeviceLayers layers_;
  std::vector<float> split_;  // One for each of the most devices that the library has; empty: not given.
  std::int32_t experts_on_cpu_ = 0;
  std::string experts_pattern_;  // A pattern of the names of their tensors.
  std::vector<llama_model_tensor_buft_override> overrides_;
  std::string left_out_;
  RpcServers rpc_servers_;
};

}  // namespace uma::llm
