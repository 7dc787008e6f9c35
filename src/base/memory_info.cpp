#include "base/memory_info.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace uma {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

std::uint64_t mem_available(const std::filesystem::path& root) {
  std::ifstream file(root / "proc/meminfo");
  std::string key;
  std::uint64_t kib = 0;
  std::string unit;
  while (file >> key >> kib >> unit) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return 0;
}

// A file of one number; unlimited where there is none, or a word.
std::uint64_t number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? number : kUnlimited;
}

std::uint64_t left_in(const std::filesystem::path& group, const char* limit_name, const char* used_name) {
  const std::uint64_t limit = number_in(group / limit_name);
  const std::uint64_t used = number_in(group / used_name);
  if (limit == kUnlimited || used == kUnlimited) return kUnlimited;
  return limit > used ? limit - used : 0;
}

// What the group of this process and those above it leave.
std::uint64_t left_in_groups(const std::filesystem::path& root) {
  std::uint64_t left = kUnlimited;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_second_version = controllers.empty();
    if (!is_second_version && controllers != "memory") continue;
    const std::filesystem::path base = root / (is_second_version ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    for (std::filesystem::path group = std::filesystem::path(line.substr(second + 1)).relative_path();;
         group = group.parent_path()) {
      left = std::min(left, is_second_version ? left_in(base / group, "memory.max", "memory.current")
                                              : left_in(base / group, "memory.limit_in_bytes", "memory.usage_in_bytes"));
      if (group.empty()) break;
    }
  }
  return left;
}

}  // namespace

std::uint64_t available_memory_bytes(const std::filesystem::path& root) {
  return std::min(mem_available(root), left_in_groups(root));
}

std::uint64_t available_memory_bytes() {
  return available_memory_bytes("/");
}

}  // namespace uma
