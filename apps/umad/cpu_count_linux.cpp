#include "umad/cpu_count.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <fstream>
#include <sched.h>
#include <set>
#include <string>
#include <vector>

namespace uma::umad {
namespace {

std::int32_t within_quota(std::int32_t count) {
  const std::int32_t quota = cpu_quota("/sys");
  return quota > 0 ? std::min(count, quota) : count;
}

}  // namespace

std::vector<int> allowed_processors() {
  std::vector<int> processors;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  // Fails only on machines with more processors than the mask has bits (1,024).
  if (::sched_getaffinity(0, sizeof(mask), &mask) != 0) return processors;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(static_cast<std::size_t>(processor), &mask)) processors.push_back(processor);
  }
  return processors;
}

std::int32_t count_physical_cores(std::span<const int> processors, const std::filesystem::path& sys) {
  // The list of its hardware threads identifies a core.
  std::set<std::string> cores;
  for (const int processor : processors) {
    std::string siblings;
    std::ifstream file(sys / std::format("devices/system/cpu/cpu{}/topology/thread_siblings_list", processor));
    if (!(file >> siblings)) siblings = std::format("processor {}", processor);
    cores.insert(siblings);
  }
  return std::max(1, static_cast<std::int32_t>(cores.size()));
}

std::int32_t cpu_quota(const std::filesystem::path& sys) {
  // Contains "QUOTA PERIOD" in microseconds, or "max PERIOD".
  std::ifstream file(sys / "fs/cgroup/cpu.max");
  double quota_us = 0;
  double period_us = 0;
  if (!(file >> quota_us >> period_us) || !(quota_us > 0) || !(period_us > 0)) return 0;
  return static_cast<std::int32_t>(std::min(1e6, std::ceil(quota_us / period_us)));
}

std::int32_t usable_physical_cores() {
  return within_quota(count_physical_cores(allowed_processors(), "/sys"));
}

std::int32_t usable_processors() {
  return within_quota(static_cast<std::int32_t>(allowed_processors().size()));
}

}  // namespace uma::umad
