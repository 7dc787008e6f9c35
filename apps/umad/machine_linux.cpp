#include "umad/machine.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <unistd.h>
#include <vector>

#include "umad/cpu_count.h"

namespace uma::umad {

std::string own_cpu_name() {
  return cpu_name("/proc/cpuinfo");
}

double machine_cpu_s() {
  const std::vector<int> allowed = allowed_processors();
  std::ifstream file("/proc/stat");
  std::string line;
  double busy = 0;
  while (std::getline(file, line) && line.starts_with("cpu")) {
    std::istringstream fields(line.substr(3));
    int processor = -1;
    std::array<double, 8> ticks{};  // Columns: user, nice, system, idle, iowait, irq, softirq, steal.
    // Skips the first line, the sum of all processors, whose name has no number.
    if (line[3] == ' ' || !(fields >> processor) || !std::ranges::contains(allowed, processor)) continue;
    for (double& count : ticks) fields >> count;
    busy += ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7];
  }
  return busy / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace uma::umad
