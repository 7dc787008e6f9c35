#include "llm/device_memory.h"

#include <ggml-backend.h>

#include "llm/llama_model.h"

namespace uma::llm {

std::vector<DeviceMemory> gpu_memory() {
  init_llama();
  std::vector<DeviceMemory> devices;
  for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    auto* const device = ggml_backend_dev_get(i);
    if (ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_GPU) continue;
    std::size_t free = 0;
    std::size_t total = 0;
    ggml_backend_dev_memory(device, &free, &total);
    devices.push_back({.name = ggml_backend_dev_name(device), .total = total, .free = free});
  }
  return devices;
}

}  // namespace uma::llm
