#include "base/cpu_load.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <limits>
#include <sched.h>
#include <string>
#include <sys/resource.h>
#include <unistd.h>

namespace uma {
namespace {

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

}  // namespace

std::optional<CpuLoad::Sample> CpuLoad::read() const {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return std::nullopt;
  std::ifstream file(stat_path_);
  std::string name;
  std::uint64_t ticks = 0;
  bool found = false;
  while (file >> name && name.starts_with("cpu")) {
    std::uint64_t user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0;
    file >> user >> nice >> system >> idle >> iowait >> irq >> softirq;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
    if (name == "cpu") continue;  // The sum of all processors, including those this process may not use.
    const int number = std::atoi(name.c_str() + 3);
    if (number < 0 || number >= CPU_SETSIZE || !CPU_ISSET(number, &allowed)) continue;
    ticks += user + nice + system + irq + softirq;
    found = true;
  }
  rusage own{};
  if (!found || ::getrusage(RUSAGE_SELF, &own) != 0) return std::nullopt;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return Sample{.at_s = std::chrono::duration<double>(now).count(),
                .all_s = static_cast<double>(ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK)),
                .own_s = seconds(own.ru_utime) + seconds(own.ru_stime)};
}

std::optional<double> CpuLoad::others_since_last() {
  const auto now = read();
  const auto before = last_;
  last_ = now;
  if (!now || !before || now->at_s <= before->at_s) return std::nullopt;
  const double others_s = (now->all_s - before->all_s) - (now->own_s - before->own_s);
  return std::max(0.0, others_s / (now->at_s - before->at_s));
}

}  // namespace uma
