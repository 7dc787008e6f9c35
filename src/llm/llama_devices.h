// Devices as the library names them. Internal to llm, because it includes the library's headers.
#pragma once

#include <memory>
#include <string>
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
  // Of a projector: the first of them; null: the library chooses.
  [[nodiscard]] ggml_backend_dev_t first() const;
  [[nodiscard]] bool are_used() const { return layers_ != 0; }

 private:
  std::vector<ggml_backend_dev_t> devices_;  // Ends with null; empty: the library's choice.
  std::int32_t layers_ = -1;                 // -1: all.
};

// Where a loaded model's layers are besides the CPU.
struct Placement {
  std::string devices;   // For people, "on Vulkan0" or "2 of 5 layers on Vulkan0"; empty: all layers are on the CPU.
  std::string identity;  // Differs where the bits of results differ: the backends and the number of layers.
};
// `layers_count`: those of the model without its output.
[[nodiscard]] Placement placement_of(const DeviceOptions& options, std::int32_t layers_count);

}  // namespace uma::llm
