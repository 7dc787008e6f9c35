#include "base/system/memory_info.h"

#include <algorithm>

namespace uma {

std::uint64_t available_memory_bytes(const std::filesystem::path& root) {
  const MemoryInfo info = read_memory_info(root);
  return std::min(info.available, info.group_left);
}

}  // namespace uma
