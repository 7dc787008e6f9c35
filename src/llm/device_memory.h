// The memory of devices that compute apart from the CPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace uma::llm {

struct DeviceMemory {
  std::string name;
  std::uint64_t total = 0;
  std::uint64_t free = 0;
};

// Of each GPU with memory of its own, in the library's order; empty on a machine without any. Asks the drivers: milliseconds.
[[nodiscard]] std::vector<DeviceMemory> gpu_memory();

}  // namespace uma::llm
