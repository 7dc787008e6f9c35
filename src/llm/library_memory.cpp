#include "llm/library_memory.h"

#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include <ggml-backend.h>

#include "llm/device/llama_devices.h"
#include "llm/device/llama_rpc.h"
#include "llm/llama_log.h"

// Bytes of one kind of buffer. The library exports this function for its own tools, but no header declares it. It is weak, so
// that umad also starts with a library that has none.
struct llama_memory_breakdown_data {
  std::size_t model = 0;
  std::size_t context = 0;
  std::size_t compute = 0;
};
[[gnu::weak]] std::map<ggml_backend_buffer_type_t, llama_memory_breakdown_data> llama_get_memory_breakdown(
    const llama_context* context);

namespace uma::llm {
namespace {

constexpr std::string_view kVersion = "0.7.";  // Version of the library for which the declaration above was tried.

// The log rounds each buffer to 0.01 MiB.
bool are_near(std::uint64_t a, std::uint64_t b) {
  constexpr double kRounding = 256 << 10;
  return std::abs(static_cast<double>(a) - static_cast<double>(b)) <= kRounding + 0.01 * static_cast<double>(a);
}

// A device with memory of its own; null: the machine's memory.
ggml_backend_dev_t own_memory_of(ggml_backend_buffer_type_t type) {
  auto* const device = ggml_backend_buft_is_host(type) ? nullptr : ggml_backend_buft_get_device(type);
  return device != nullptr && kind_of(device) == DeviceKind::gpu ? device : nullptr;
}

}  // namespace

std::optional<LibraryMemory> library_memory(const llama_context* context) {
  // A function with the same name that returns something else would be called all the same.
  if (llama_get_memory_breakdown == nullptr || !std::string_view(llama_version()).starts_with(kVersion)) return std::nullopt;
  LibraryMemory memory;
  std::uint64_t compute = 0;
  for (const auto& [type, bytes] : llama_get_memory_breakdown(context)) {
    memory.weights += bytes.model;
    compute += bytes.compute;
    if (auto* const device = own_memory_of(type); device != nullptr) {
      const std::string name = device_name(device);
      memory.weights_on_devices.add(name, bytes.model);
      memory.context_on_devices.add(name, bytes.context + bytes.compute);
    }
  }
  // Another version's numbers may lie elsewhere.
  if (!are_near(compute, library_log().compute_bytes())) return std::nullopt;
  return memory;
}

}  // namespace uma::llm
