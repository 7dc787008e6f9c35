// The memory of GPUs.
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

// Lists the GPUs with memory of their own, in the library's order; empty on a machine without one. Asks the drivers, which
// takes milliseconds.
[[nodiscard]] std::vector<DeviceMemory> gpu_memory();

}  // namespace uma::llm
