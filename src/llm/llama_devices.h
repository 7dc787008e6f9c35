// Devices as the library names them. Internal to llm, because it includes the library's headers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ggml-backend.h>
#include <llama.h>

#include "core/error.h"
#include "llm/devices.h"

namespace uma::llm {

// The devices of a model that is loaded, for llama_model_params::devices. Lives as long as the parameters.
class ChosenDevices {
 public:
  // Errors: E_MODEL_002 for a device that does not exist or takes no layers.
  [[nodiscard]] static Expected<ChosenDevices> of(const DeviceOptions& options);
  void apply(llama_model_params& params);
  // Of a projector: the first of them; null: the CPU.
  [[nodiscard]] ggml_backend_dev_t first() const { return handles_.front(); }
  [[nodiscard]] bool are_used() const { return !used_.empty(); }
  [[nodiscard]] bool take_all_layers() const { return are_used() && !layers_; }
  // Of those that have memory of their own; nullopt: none has.
  [[nodiscard]] std::optional<std::uint64_t> free_bytes() const;
  // The same devices, without the figures of their memory; empty: none.
  [[nodiscard]] const std::vector<Device>& used() const { return used_; }

 private:
  std::vector<Device> used_;
  std::vector<ggml_backend_dev_t> handles_;  // Of the same, and null at the end.
  DeviceLayers layers_;
};

}  // namespace uma::llm
