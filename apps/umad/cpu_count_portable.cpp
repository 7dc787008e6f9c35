#include "umad/cpu_count.h"

#include <algorithm>
#include <numeric>
#include <thread>

#ifdef __APPLE__
#include <cstddef>
#include <sys/sysctl.h>
#endif

namespace uma::umad {
namespace {

// The cores of a machine of two kinds that are the fast ones, else all physical cores; 0: the system does not tell.
std::int32_t cores_of_system() {
#ifdef __APPLE__
  for (const char* const name : {"hw.perflevel0.physicalcpu", "hw.physicalcpu"}) {
    std::int32_t cores = 0;
    std::size_t size = sizeof(cores);
    if (::sysctlbyname(name, &cores, &size, nullptr, 0) == 0 && cores > 0) return cores;
  }
#endif
  return 0;
}

}  // namespace

std::vector<int> allowed_processors() {
  std::vector<int> processors(std::thread::hardware_concurrency());
  std::iota(processors.begin(), processors.end(), 0);
  return processors;
}

std::int32_t usable_processors() {
  return static_cast<std::int32_t>(std::thread::hardware_concurrency());
}

std::int32_t usable_physical_cores() {
  const std::int32_t cores = cores_of_system();
  return cores > 0 ? cores : std::max(1, static_cast<std::int32_t>(std::thread::hardware_concurrency()));
}

}  // namespace uma::umad
