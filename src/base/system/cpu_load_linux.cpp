#include "base/system/cpu_load.h"

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sched.h>
#include <string>
#include <unistd.h>

namespace uma {

std::optional<double> busy_processors_s(const std::string& stat_path, Stolen stolen) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return std::nullopt;
  std::ifstream file(stat_path);
  std::string name;
  std::uint64_t ticks = 0;
  bool found = false;
  while (file >> name && name.starts_with("cpu")) {
    std::uint64_t user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
    file >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
    if (name == "cpu") continue;  // The sum of all processors, including those this process may not use.
    const int number = std::atoi(name.c_str() + 3);
    if (number < 0 || number >= CPU_SETSIZE || !CPU_ISSET(number, &allowed)) continue;
    ticks += user + nice + system + irq + softirq + (stolen == Stolen::counted ? steal : 0);
    found = true;
  }
  if (!found) return std::nullopt;
  return static_cast<double>(ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

std::string processor_stat_path() {
  return "/proc/stat";
}

}  // namespace uma
