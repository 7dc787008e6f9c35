// The memory that the library's buffers take on devices. Internal to llm, because it includes the library's headers.
#pragma once

#include <cstdint>
#include <optional>

#include <llama.h>

#include "llm/device/device_bytes.h"

namespace uma::llm {

// The memory of a context and of its model, as the library planned it; also without weights (no_alloc).
struct LibraryMemory {
  std::uint64_t weights = 0;  // In all memories.
  DeviceBytes weights_on_devices;
  DeviceBytes context_on_devices;  // Keys and values, states, and tensors of the largest computation.
};

// Requires: `context` is the last one that this thread has made, and library_log() was cleared before. Nullopt: this version of
// the library does not say, or says something else than its log.
[[nodiscard]] std::optional<LibraryMemory> library_memory(const llama_context* context);

}  // namespace uma::llm
