#include "base/system/cpu_load.h"

#ifdef __APPLE__
#include <mach/mach.h>
#include <unistd.h>
#endif

namespace uma {

std::optional<double> busy_processors_s(const std::string& /*stat_path*/, Stolen /*stolen*/) {
#ifdef __APPLE__
  host_cpu_load_info_data_t load{};
  mach_msg_type_number_t count = HOST_CPU_LOAD_INFO_COUNT;
  if (::host_statistics(::mach_host_self(), HOST_CPU_LOAD_INFO, reinterpret_cast<host_info_t>(&load), &count) != KERN_SUCCESS) {
    return std::nullopt;
  }
  double ticks = 0;
  for (const int state : {CPU_STATE_USER, CPU_STATE_SYSTEM, CPU_STATE_NICE}) ticks += load.cpu_ticks[state];
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
#else
  return std::nullopt;
#endif
}

std::string processor_stat_path() {
  return {};
}

}  // namespace uma
