#include "umad/machine.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <string_view>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include "llm/llama_model.h"
#include "umad/cpu_count.h"

namespace uma::umad {
namespace {

std::string value_of(std::string_view line) {
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return {};
  std::string value;
  for (const char c : line.substr(colon + 1)) {
    const bool is_kept = c > ' ' && c <= '~' && c != '"' && c != '\\';
    if (is_kept) value += c;
    if (!is_kept && !value.empty() && value.back() != ' ') value += ' ';
  }
  while (value.ends_with(' ')) value.pop_back();
  return value;
}

}  // namespace

std::string cpu_name(const std::filesystem::path& cpuinfo) {
  std::ifstream file(cpuinfo);
  std::string line;
  std::string parts;
  while (std::getline(file, line) && !line.empty()) {  // Reads the paragraph of the first processor.
    if (line.starts_with("model name")) {
      if (std::string name = value_of(line); !name.empty()) return name;
    }
    if (line.starts_with("CPU implementer") || line.starts_with("CPU part")) {
      parts += (parts.empty() ? "" : " ") + value_of(line);
    }
  }
  return parts.empty() ? "unknown" : parts;
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

double process_cpu_s() {
  rusage used{};
  if (::getrusage(RUSAGE_SELF, &used) != 0) return 0;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

Machine this_machine() {
  return {.cpu = cpu_name("/proc/cpuinfo"), .cores = usable_physical_cores(), .library = llm::llama_version_text()};
}

}  // namespace uma::umad
