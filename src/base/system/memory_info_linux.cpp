#include "base/system/memory_info.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>

namespace uma {
namespace {

struct Wanted {
  std::string_view key;
  std::uint64_t& value;
};

// Reads lines with a key and a number in `unit` bytes ("MemTotal:  4000 kB", "inactive_file 8192").
void read_values(const std::filesystem::path& path, std::uint64_t unit, std::initializer_list<Wanted> wanted) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    for (const Wanted& one : wanted) {
      if (line.starts_with(one.key)) one.value = std::strtoull(line.c_str() + one.key.size(), nullptr, 10) * unit;
    }
  }
}

// Reads a file with one number; unlimited if the file is missing or contains a word.
std::uint64_t number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? number : MemoryInfo::kUnlimited;
}

// File names of one version of control groups.
struct GroupFiles {
  const char* mount;
  const char* limit;
  const char* soft_limit;  // Limit at which the kernel slows processes down; null: none.
  const char* used;
  std::string_view idle_pages;  // Field of memory.stat that includes child groups.
};
constexpr GroupFiles kFirstVersion{"sys/fs/cgroup/memory", "memory.limit_in_bytes", nullptr, "memory.usage_in_bytes",
                                   "total_inactive_file "};
constexpr GroupFiles kSecondVersion{"sys/fs/cgroup", "memory.max", "memory.high", "memory.current", "inactive_file "};

void add_group(MemoryInfo& info, const std::filesystem::path& group, const GroupFiles& files) {
  std::uint64_t limit = number_in(group / files.limit);
  if (files.soft_limit != nullptr) limit = std::min(limit, number_in(group / files.soft_limit));
  const std::uint64_t used = number_in(group / files.used);
  if (limit == MemoryInfo::kUnlimited || used == MemoryInfo::kUnlimited) return;
  std::uint64_t idle = 0;
  read_values(group / "memory.stat", 1, {{files.idle_pages, idle}});
  const std::uint64_t held = used - std::min(used, idle);
  info.group_limit = std::min(info.group_limit, limit);
  info.group_left = std::min(info.group_left, limit - std::min(limit, held));
}

// Adds the limits of this process's group and its parents.
void add_groups(MemoryInfo& info, const std::filesystem::path& root) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string_view controllers = std::string_view(line).substr(first + 1, second - first - 1);
    if (!controllers.empty() && controllers != "memory") continue;
    const GroupFiles& files = controllers.empty() ? kSecondVersion : kFirstVersion;
    for (std::filesystem::path group = std::filesystem::path(line.substr(second + 1)).relative_path();;
         group = group.parent_path()) {
      add_group(info, root / files.mount / group, files);
      if (group.empty()) break;
    }
  }
}

// Reads a line such as "some avg10=0.25 avg60=…".
std::optional<double> pressure_of(const std::filesystem::path& root) {
  std::ifstream file(root / "proc/pressure/memory");
  std::string kind;
  std::string average;
  constexpr std::string_view kKey = "avg10=";
  if (!(file >> kind >> average) || kind != "some" || !average.starts_with(kKey)) return std::nullopt;
  return std::strtod(average.c_str() + kKey.size(), nullptr);
}

}  // namespace

MemoryInfo read_memory_info(const std::filesystem::path& root) {
  constexpr std::uint64_t kKiB = 1024;
  MemoryInfo info;
  read_values(root / "proc/meminfo", kKiB, {{"MemTotal:", info.total}, {"MemAvailable:", info.available}});
  read_values(root / "proc/self/status", kKiB, {{"VmRSS:", info.own_resident}, {"RssAnon:", info.own_anonymous}});
  add_groups(info, root);
  info.pressure = pressure_of(root);
  return info;
}

std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t pages_total = 0;
  std::uint64_t pages_resident = 0;
  file >> pages_total >> pages_resident;
  return pages_resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace uma
